"""What of the statistics takes part in the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from threading import Event
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.doors import Attempt, Extension, Kind

#: Seconds from the start until the first count, and between two counts.
FIRST, INTERVAL = 1.0, 20.0


def _query(task: str) -> dict[str, str]:
    return {"state__exact": "failed", "task": task, "ended": "1h"}


def _place(task: str) -> tuple[Any, str]:
    from jobs.admin.html import url_of

    return _("Show them"), url_of("job_changelist", **_query(task))


def _button(task: str) -> tuple[str, Any, str, dict[str, Any], Any]:
    from jobs.admin.html import url_of

    warns = _("All jobs of this task that failed in the last hour run again.")
    fields = {"operation": "retry", "scope": "all"}
    return "retry_job", _("Retry these"), url_of("job_operate", **_query(task)), fields, warns


def _kind(severity: str, many: Any, before: str = "") -> Kind:
    return Kind(severity=severity, many=many, is_fault=False, before=before, place=_place, button=_button)


def run(stopping: Event, attempt: Attempt) -> None:
    from django.db import connections

    from jobs.contrib.statistics.counting import Count
    from jobs.lifecycle.board import board

    count, pause = Count(lambda: board.node), FIRST
    while not stopping.wait(pause):
        attempt(count.run_once)
        # Not for the pause.
        connections.close_all()
        pause = INTERVAL


class Statistics(Extension):
    kinds = {
        "failing": _kind(
            "error",
            ngettext_lazy("%(number)s task fails every time", "%(number)s tasks fail every time", "number"),
        ),
        "failed": _kind(
            "warning", ngettext_lazy("%(number)s failed this hour", "%(number)s failed this hour", "number"), "dead"
        ),
    }

    def threads(self) -> list[Callable[[Event, Attempt], None]]:
        return [run]

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.contrib.statistics import problems, tallies

        minutes = found.get("minutes")
        if minutes is None:
            counted, rest = tallies.last_hour()
            minutes = counted + rest
        return problems.of(minutes, found["nodes"])

    def known(self, what: str) -> Iterable[str]:
        from jobs.contrib.statistics.models import Tally

        return Tally.objects.values_list(what, flat=True).distinct()

    def metrics(self) -> list[tuple[str, str, list[str], Any]]:
        from jobs.contrib.statistics import demand

        return [("jobs_processes_needed", demand.SAYS, ["queue_name"], demand.samples)]

    def counters(self) -> list[tuple[str, str, list[str], Any]]:
        from jobs.contrib.statistics import tallies

        ever = cache(tallies.ever)

        def of(state: str) -> Any:
            return lambda found: ever()[state].items()

        task = ["name", "queue_name"]
        return [
            ("celery_task_succeeded", "Jobs that succeeded.", task, of("succeeded")),
            ("celery_task_failed", "Jobs that failed.", [*task, "exception"], of("failed")),
            ("celery_task_revoked", "Jobs that were cancelled, or expired.", task, of("cancelled")),
        ]
