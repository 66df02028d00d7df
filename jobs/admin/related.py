"""What belongs to a job and is no part of its row: children, markers, lock, external calls, and others like it."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth import get_permission_codename
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import effects
from jobs.admin.readonly import NOTHING
from jobs.models import Effect, Job, Marker, State
from jobs.selection import SHOWN
from jobs.times import duration
from jobs.why import View

EFFECT_LABELS = {
    "sending": _("being made"),
    "ambiguous": _("ambiguous"),
    "sent": _("sent"),
    "parked": _("parked"),
}


def related(request: HttpRequest, view: View) -> dict[str, Any]:
    """For the template."""
    sees_markers, sees_effects = may(request, "view", Marker), may(request, "view", Effect)
    return {
        "others": _others(view.job),
        "children": [(job, job_url(job.pk)) for job in view.children],
        "markers": [(marker, marker_url(marker)) for marker in view.markers] if sees_markers else [],
        "lock": _lock(view),
        "effects": [
            {
                "row": row,
                "badge": effect_badge(row),
                "url": reverse(f"admin:{Effect._meta.app_label}_effect_change", args=[row.pk]),
                "settle_url": settle_url(row) if may(request, "change", Effect) else "",
            }
            for row in (view.effects if sees_effects else [])
        ],
    }


def may(request: HttpRequest, verb: str, model: Any) -> bool:
    """Whether somebody has Django's own permission (``view``, ``change``, ``delete``) for a model of this app."""
    return bool(request.user.has_perm(f"{model._meta.app_label}.{get_permission_codename(verb, model._meta)}"))


def _others(job: Job) -> list[tuple[str, str]]:
    """Where the list shows the jobs that have something in common with this one."""
    base = reverse(f"admin:{Job._meta.app_label}_job_changelist")
    found = [(gettext("Same task"), {"task": job.task}), (gettext("Same queue"), {"queue": job.queue})]
    keys = dict.fromkeys(filter(None, (job.unique_key, job.marker_key)))
    found += [(gettext("Same key: %(key)s") % {"key": key}, {"key": key}) for key in keys]
    if job.node_id is not None:
        found.append((gettext("Same worker"), {"node": str(job.node_id)}))
    found.append((gettext("Called by this job"), {"parent": str(job.pk)}))
    return [(label, f"{base}?{urlencode(query)}") for label, query in found]


def _lock(view: View) -> str:
    if view.lock is None:
        return ""
    key, held = view.lock
    if held is None:
        return gettext("%(key)s: free") % {"key": key}
    left = gettext(" for %(time)s at the most") % {"time": duration(held.left)} if held.left is not None else ""
    if held.job == view.job.pk:
        return gettext("%(key)s: held by this job") % {"key": key} + left
    if held.job is None:
        return gettext("%(key)s: held by a process that is no job") % {"key": key} + left
    name = format_html('<a href="{}">{}</a>', job_url(held.job), held.job)
    return format_html(gettext("{key}: held by the job {job}{left}"), key=key, job=name, left=left)


def effect_badge(row: Effect) -> SafeString:
    status = effects.status(row)
    return format_html('<span class="job-state effect-{}">{}</span>', status, EFFECT_LABELS[status])


def settle_url(row: Effect) -> str:
    """Where a person says whether the call happened; empty if nobody has to."""
    if effects.status(row) not in ("ambiguous", "parked"):
        return ""
    return reverse(f"admin:{Effect._meta.app_label}_effect_settle", args=[row.pk])


def marker_url(marker: Marker) -> str:
    return reverse(f"admin:{Marker._meta.app_label}_marker_change", args=[marker.pk])


def job_url(key: uuid.UUID) -> str:
    return reverse(f"admin:{Job._meta.app_label}_job_change", args=[key])


def link(row: Model, key: uuid.UUID | None) -> str:
    """The other job that a row names, if it is (still) one of ours."""
    if key is None:
        return NOTHING
    if key == row.pk:
        return gettext("this job")
    other = Job.objects.using(row._state.db).filter(pk=key).only("id", "task", "state").first()
    if other is None:
        return gettext("%(id)s (not a job here, or deleted)") % {"id": key}
    return format_html('<a href="{}">{} {}</a> ({})', job_url(other.pk), other.task, other.pk, State(other.state).label)


def link_in_list(key: uuid.UUID) -> SafeString:
    return format_html('<a href="{}">{}</a>', job_url(key), str(key)[-SHOWN:])
