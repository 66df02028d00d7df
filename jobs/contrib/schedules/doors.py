"""The part of the schedule in the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import TIMEOUT_MAX, Event
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.contrib.schedules.ticks import SCHEDULES, Ticks
from jobs.doors import Attempt, Extension
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
    """Options of a task that come on top:

    every (seconds, timedelta, or a schedule of Celery's: ``crontab(hour=3, minute=0)``):
        The workers call the task again and again, without arguments; no ``celery beat`` is needed.
    catch_up (bool, default True):
        A tick of the schedule that no worker was there for is made up for once, late. With False it is skipped.
    """

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

    def idle(self, app: Any, using: str, clock: Any) -> bool:
        from jobs.contrib.schedules import passing

        return passing.tick(app, using, clock)

    def status(self, found: dict[str, Any]) -> dict[str, Any]:
        from jobs.contrib.schedules import rows

        return {"schedules": rows.gather(any(node["takes_jobs"] for node in found["nodes"]))}

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.contrib.schedules import rows

        return rows.problems(found["schedules"])

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.schedules import admin

        return {"panel": admin.panel(request, about["schedules"])} if page == "dashboard" else {}

    def reasons(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.schedules import rows

        return rows.reasons(view)
