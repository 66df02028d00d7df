"""What the operator's room shows of the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.contrib.operator.problem import Kind, Link
from jobs.contrib.schedules import rows


def _kind(severity: str, many: Any, is_fault: bool = True, button: tuple[Any, str] | None = None) -> Kind:
    def place(name: Any) -> Link:
        return Link(_("Show it"), "schedule_change", (quote(name),))

    def mend(name: Any) -> Link:
        label, action = button or ("", "")
        fields = {"_selected_action": name, "index": "0", "action": action}
        return Link(label, "schedule_changelist", permission="operate_schedule", fields=fields)

    return Kind(
        severity=severity, many=many, is_fault=is_fault, permission="view_schedule", place=place,
        button=mend if button else None,
    )  # fmt: skip


KINDS = {
    "schedule_error": _kind(
        "error",
        ngettext_lazy("%(number)s schedule makes no job", "%(number)s schedules make no jobs", "number"),
    ),
    "schedule_overdue": _kind(
        "error",
        ngettext_lazy("%(number)s schedule is overdue", "%(number)s schedules are overdue", "number"),
    ),
    "schedule_missed": _kind(
        "warning",
        ngettext_lazy("%(number)s schedule missed its time", "%(number)s schedules missed their time", "number"),
        button=(_("Run now"), "run_now"),
    ),
    "beat": Kind(
        severity="warning",
        many=ngettext_lazy("celery beat runs beside", "celery beat runs beside", "number"),
        is_fault=False,
    ),
    "schedule_paused": _kind(
        "info",
        ngettext_lazy("%(number)s schedule is paused", "%(number)s schedules are paused", "number"),
        is_fault=False,
        button=(_("Resume"), "resume"),
    ),
}


def status(found: dict[str, Any]) -> dict[str, Any]:
    return {"schedules": rows.gather(any(node["takes_jobs"] for node in found["nodes"]))}


def problems(found: dict[str, Any]) -> Iterator[Any]:
    return rows.problems(found["schedules"])
