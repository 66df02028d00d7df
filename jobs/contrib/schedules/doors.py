"""What of the schedule takes part in the core."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from threading import TIMEOUT_MAX, Event
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.contrib.schedules.ticks import SCHEDULES, Ticks
from jobs.doors import Attempt, Extension, Passing
from jobs.inspection.problems import Kind, Link

#: Seconds after an error until the thread looks again.
LOOK_AGAIN = 1.0


def _kind(severity: str, many: Any, is_fault: bool = True, button: tuple[Any, str] | None = None) -> Kind:
    def place(name: Any) -> Link:
        from django.contrib.admin.utils import quote

        return Link(_("Show it"), "schedule_change", (quote(name),))

    def mend(name: Any) -> Link:
        label, action = button or ("", "")
        fields = {"_selected_action": name, "index": "0", "action": action}
        return Link(label, "schedule_changelist", permission="operate_schedule", fields=fields)

    return Kind(
        severity=severity, many=many, is_fault=is_fault, permission="view_schedule", place=place,
        button=mend if button else None,
    )  # fmt: skip


def run(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.schedules.scheduler import Schedules

    schedules = Schedules()
    while not stopping.is_set():
        pause = schedules.pause if attempt(schedules.run_once) else LOOK_AGAIN
        stopping.wait(min(pause, TIMEOUT_MAX))


class Schedules(Extension):
    options = {
        "every": ("seconds, a timedelta, a crontab, or another schedule of Celery's", SCHEDULES),
        "catch_up": ("True or False", (bool,)),
    }
    kinds = {
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

    def declared(self, task: type[Any]) -> None:
        if (every := getattr(task, "every", None)) is None:
            return
        Ticks(every, task._get_app())
        try:
            task.body_signature.bind()
        except TypeError as exc:
            raise TypeError(
                f"every= calls the task without arguments ({exc}): give them defaults, or name the arguments in "
                "beat_schedule"
            ) from None

    def threads(self) -> list[Callable[[Event, Attempt], None]]:
        return [run]

    def passing(self, app: Any, aliases: Sequence[str], only: Collection[str] | bool) -> Passing:
        from jobs.contrib.schedules import passing

        return passing.Passing(app, aliases, only)

    def status(self, found: dict[str, Any]) -> dict[str, Any]:
        from jobs.contrib.schedules import rows

        return {"schedules": rows.gather(any(node["takes_jobs"] for node in found["nodes"]))}

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.contrib.schedules import rows

        return rows.problems(found["schedules"])

    def panel(self, request: Any, found: dict[str, Any]) -> str:
        from jobs.contrib.schedules import admin

        return admin.panel(request, found["schedules"])

    def reasons(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.schedules import rows

        return rows.reasons(view)
