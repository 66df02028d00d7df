"""The operations that a person can do to a job on its page."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import translation
from django.utils.translation import gettext

from jobs.contrib.operations.actions import OPERATIONS, Operation, Outcome
from jobs.contrib.pages.base import ReadOnlyAdmin, apart, may, page, why_of
from jobs.contrib.pages.html import url_of
from jobs.models import Job


class OperableAdmin(ReadOnlyAdmin):
    @page("<uuid:key>/operate/", "job_operate_one")
    @apart
    def operate_one(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        """Operate on one job, and go back to its page."""
        back = url_of("job_change", key)
        if (operation := self.asked(request)) is None:
            return HttpResponseRedirect(back)
        job = get_object_or_404(self.get_queryset(request), pk=key)
        outcome = self.operate_on(request, operation, job)
        level = messages.SUCCESS if outcome.is_done else messages.WARNING
        # The admin writes the first letter of a message large: it must not be that of the task.
        says = gettext("The job %(job)s: %(says)s") % {"job": job, "says": outcome.says}
        messages.add_message(request, level, says)
        is_gone = outcome.is_done and operation.deletes
        return HttpResponseRedirect(url_of("job_changelist") if is_gone else back)

    def asked(self, request: HttpRequest) -> Operation | None:
        """The operation that the request asks for. None if its value is not possible: then a message says why."""
        operation = OPERATIONS.get(request.POST.get("operation", ""))
        if operation is None or not may(request, operation.permission):
            raise PermissionDenied
        try:
            return operation.told(request.POST.get("value", ""), request.user.get_username(), why_of(request))
        except ValueError as exc:
            messages.error(request, str(exc))
            return None

    def operate_on(self, request: HttpRequest, operation: Operation, job: Job) -> Outcome:
        def log(outcome: Outcome) -> None:
            # Everything that is stored is in English.
            with translation.override(None):
                said = f"{operation.label}: {outcome.says}" + (f" ({operation.why})" if operation.why else "")
            user: Any = request.user.pk
            flag = DELETION if operation.deletes else CHANGE
            LogEntry.objects.log_actions(user, [job], flag, change_message=said, single_object=True)

        return operation.attempt(job.pk, also=log)
