"""The button that pauses a queue, or resumes it."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from jobs.contrib.inspection.view import View
from jobs.contrib.pages.base import may, page, template_of, why_of
from jobs.contrib.pages.html import front, url_of
from jobs.contrib.pages.job import JobAdmin
from jobs.contrib.pauses import pauses
from jobs.models import WAITING, Pause


@page("queue/", "queue_switch", "pause_queue")
def switch(self: JobAdmin, request: HttpRequest) -> HttpResponse:
    """Pause a queue, or resume it."""
    name, verb, why = request.POST.get("queue", ""), request.POST.get("verb"), why_of(request)
    if verb not in ("pause", "resume"):
        raise PermissionDenied
    try:
        if verb == "pause":
            done = pauses.pause(name, request.user.get_username(), why)
            said = gettext("Paused: %s") if done else gettext("Paused already: %s")
        else:
            done = pauses.resume(name)
            said = gettext("Resumed: %s") if done else gettext("Not paused: %s")
    except ValueError as exc:
        messages.error(request, str(exc))
    else:
        if done:
            self.log_change(request, Pause(queue=name), f"{verb} {why}".strip())
        messages.add_message(request, messages.SUCCESS if done else messages.WARNING, said % name)
    return HttpResponseRedirect(front())


JobAdmin.switch = switch  # type: ignore[attr-defined]


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    if view.job.state not in WAITING or view.pause is None or not may(request, "pause_queue"):
        return {}
    fields = {"verb": "resume", "queue": view.job.queue}
    words = {"queue": view.job.queue, "fields": fields, "action": url_of("queue_switch")}
    return {"above": template_of("resume.html", __file__).render(words, request)}
