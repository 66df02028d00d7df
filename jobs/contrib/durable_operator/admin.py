"""The steps of a job on its page, with the form that sends what it waits for; and the signals."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.durable_operator import rows as rows_of
from jobs.contrib.durable_operator.sending import send
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import SHOWN, View
from jobs.contrib.operations.given import parsed
from jobs.contrib.operations.selection import DIGITS
from jobs.contrib.pages import html
from jobs.contrib.pages.base import ReadOnlyAdmin, by_key, may, page, template_of, whether
from jobs.contrib.pages.html import column, time_column, url_of
from jobs.contrib.redaction.display import shown
from jobs.models import Job

#: How many steps a page shows, the last ones; and the length above which a value is folded.
LAST, SHORT = 50, 60

#: The looks of a step by its state: a badge, and a bar.
LOOKS = {"done": "succeeded", "over": "succeeded", "failed": "failed", "waiting": "scheduled"}


@admin.register(Signal)
class SignalAdmin(ReadOnlyAdmin):
    list_display = ("key", "shown_payload", "sent", "taker")
    list_filter = (("taken_by", whether(_("taken"), _("nobody took it"), _("taken"))),)
    lookups = frozenset({"taken_by__isempty"})
    search_fields = ("key",)
    search_help_text = _("The beginning of a key.")
    fields = list_display

    shown_payload = column(_("payload"), lambda row: html.pretty(row.payload))
    sent = time_column(_("sent at"), "made_at")
    taker = column(_("taken by"), lambda row: html.short_link(row.taken_by))

    def look_at(self, rows: Iterable[Any]) -> None:
        rows_of.veil(rows)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return by_key(rows, term)

    @page("<uuid:key>/send/", "signal_send", "send_signal")
    def send(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        """Send the signal that a job waits for, and go back to its page."""
        if not may(request, "view_job"):
            raise PermissionDenied
        job = get_object_or_404(Job.objects.using(self.get_queryset(request).db), pk=key)
        back = HttpResponseRedirect(url_of("job_change", key))
        if (waited := rows_of.key_of(job)) is None:
            messages.warning(request, gettext("It waits for no signal any more, and nothing was sent."))
            return back
        if request.POST.get("for") != _name_of(waited):
            messages.warning(request, gettext("It waits for another signal now, and nothing was sent."))
            return back
        using, text = str(job._state.db), request.POST.get("payload", "").strip()
        user: Any = request.user
        try:
            payload = parsed(text) if text else True
            with transaction.atomic(using=using):
                # For the log: all that is stored is English. The list of the signals shows the payload.
                said = f"Sent the signal {shown(job).text('key', waited)}"
                LogEntry.objects.log_actions(user.pk, [job], CHANGE, change_message=said, single_object=True)
                takes = send(waited, payload, using, user.get_username())
        except (TypeError, ValueError) as exc:
            messages.error(request, gettext("The payload cannot be kept as JSON, and nothing was sent: %s") % exc)
            return back
        if takes is not None and takes.pk != job.pk:
            says = gettext("Sent. The job %s takes it, which is older and waits for the same.") % takes.pk
            messages.warning(request, says)
        else:
            messages.success(request, gettext("Sent: the job goes on."))
        return back


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    """The steps, and the form if it waits for a signal that the user may send."""
    found = {}
    waited = rows_of.key_of(view.job)
    if waited is not None and may(request, "send_signal") and may(request, "view_signal"):
        form = {
            "key": view.seen.text("key", waited),
            "for": _name_of(waited),
            "url": url_of("signal_send", view.job.pk),
        }
        found["above"] = template_of("send.html", __file__).render(form, request)
    # A task that is not known here may be durable.
    if getattr(view.task, "durable", True) and (steps := rows_of.steps(view.job, LAST + 1)):
        words = {"steps": _drawn(steps[-LAST:], view), "job": view.job, "is_cut": len(steps) > LAST}
        found["history"] = template_of("steps.html", __file__).render(words, request)
    return found


def _name_of(key: str) -> str:
    """A name of a signal's key that does not tell it: the page that has the form may hide it."""
    return salted_hmac("jobs.signal", key).hexdigest()


def _drawn(steps: list[dict[str, Any]], view: View) -> list[dict[str, Any]]:
    """For the template: where the bar of each step begins, and how long it is, in percent of the time of all."""
    begin: datetime.datetime = steps[0]["begun_at"]
    ends = [each["done_at"] or view.now for each in steps]
    whole = max(0.001, (max(ends) - begin).total_seconds())
    for each, end in zip(steps, ends, strict=True):
        x = max(0.0, (each["begun_at"] - begin).total_seconds() / whole * 100)
        each["x"] = round(min(x, 99.0), 2)
        each["width"] = round(max(1.0, (end - each["begun_at"]).total_seconds() / whole * 100), 2)
        each["look"] = look = LOOKS[each["state"]]
        # A wait is no work, even when it is over.
        each["bar"] = "scheduled" if each["kind"] in ("sleep", "wait") and look != "failed" else look
        label = _("over") if each["state"] == rows_of.OVER else Step.State(each["state"]).label
        each["badge"] = html.badge(f"job-{look}", label)
        each["label"] = Step.Kind(each["kind"]).label
        each["begun"], each["took"] = html.time(each["begun_at"]), duration(each["seconds"])
        each["until"] = each["until"] and html.ago(each["until"])
        text = "" if each["value"] is None else json.dumps(each["value"], ensure_ascii=False, default=str)
        each["short"], each["long"] = (text, "") if len(text) <= SHORT else ("", html.pretty(each["value"]))
        each["has_more"] = len(each["children"]) > SHOWN
        shown = each["children"][:SHOWN]
        each["children"] = [(_child(child["task"], child["id"]), html.state(child["state"])) for child in shown]
    return steps


def _child(task: str, key: uuid.UUID) -> str:
    return html.link(f"{task.rpartition('.')[2]} {str(key)[-DIGITS:]}", "job_change", key)
