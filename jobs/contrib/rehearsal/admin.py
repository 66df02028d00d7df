"""The button "What would it do?" on a job's page, and the page with the answer."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.apps import apps
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_permission_codename
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from jobs.conf import celery_app
from jobs.contrib.inspection.view import View
from jobs.contrib.pages.base import apart, may, page, template_of
from jobs.contrib.pages.html import url_of
from jobs.contrib.pages.job import JobAdmin
from jobs.contrib.rehearsal.rehearse import Refused, leaves, refusal, rehearse
from jobs.contrib.rehearsal.report import lines
from jobs.models.values import Repr


@page("<uuid:key>/rehearse/", "job_rehearse", "retry_job")
@apart
def _rehearse(self: Any, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
    """Run the body in this process, and show what was rolled back."""
    job = get_object_or_404(self.get_queryset(request), pk=key)
    back = url_of("job_change", key)
    if any(isinstance(each, Repr) for each in leaves(job)) and not may(request, "decrypt_job"):
        messages.warning(request, gettext("Its arguments are encrypted, and you may not read them."))
        return HttpResponseRedirect(back)
    # It is logged first, because a body may end the process. Stored texts are in English.
    user: Any = request.user.pk
    LogEntry.objects.log_actions(user, [job], CHANGE, change_message="Looked what it would do", single_object=True)
    try:
        if (app := celery_app()) is None:
            raise Refused(gettext("The project's Celery app is not loaded here."))
        found = rehearse(key, app)
    except Refused as exc:
        messages.warning(request, str(exc))
        return HttpResponseRedirect(back)
    _hide_fields(request, found)
    shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
    words = {"title": gettext("What it would do"), "job": job, "back": back, "found": found}
    words["lines"] = "\n".join(lines(json.loads(json.dumps(found, default=str)))[1:])
    return TemplateResponse(request, template_of("rehearsal.html", __file__), {**shared, **words})


def _hide_fields(request: HttpRequest, found: dict[str, Any]) -> None:
    """Show only the keys of rows whose models the person may not see."""
    for row in found["rows"]:
        about = apps.get_model(row["model"])._meta
        names = [get_permission_codename(action, about) for action in ("view", "change")]
        if not any(request.user.has_perm(f"{about.app_label}.{name}") for name in names):
            row["fields"] = {}
            note = gettext("Fields of models that you may not see are left out.")
            found["notes"] = list(dict.fromkeys([*found["notes"], note]))


JobAdmin.rehearse = _rehearse  # type: ignore[attr-defined]


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    if refusal(view.job, view.task) or not may(request, "retry_job"):
        return {}
    words = {"url": url_of("job_rehearse", view.job.pk)}
    return {"above": template_of("rehearse.html", __file__).render(words, request)}
