"""What the operator's room shows of the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.times import duration
from jobs.contrib.operator.problem import Kind, Link, Problem, ago, by_whom
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


def problems(found: dict[str, Any]) -> Iterator[Problem]:
    texts = {
        "paused": gettext("the schedule %(name)s is paused%(by)s"),
        "error": gettext("the schedule %(name)s: the job of its last tick could not be made: %(error)s"),
        "overdue": gettext("the schedule %(name)s has been due for %(time)s, and no worker has made its job"),
        "missed": gettext("the schedule %(name)s missed its time %(time)s ago (%(missed)s missed so far)"),
    }
    meanings = {
        "paused": gettext("Its times pass without jobs until it is resumed."),
        "error": gettext("Its task, or what it is called with, is not what the code expects."),
        "overdue": gettext("No worker is alive that has this schedule in its code."),
        "missed": gettext("No worker was there at that time. This stays until a job is made on time."),
    }
    for each in found["schedules"]:
        status = each["status"]
        if status in texts:
            at = {"paused": each["paused_at"], "overdue": each["next_tick"], "missed": each["missed_at"]}.get(status)
            since, by = at and ago(at), by_whom(each["paused_by"], each["reason"])
            says = texts[status] % {**each, "time": duration(since), "by": by}
            more: dict[str, Any] = {"about": each["name"], "since": since}
            if status == "paused":
                more["command"] = f"manage.py jobs schedule --resume {each['name']!r}"
            yield Problem(f"schedule_{status}", says, meanings[status], **more)
    if any(each["beat"] for each in found["schedules"]):
        yield Problem("beat", gettext("celery beat runs beside the workers, who run the schedule themselves: stop it"))
