"""The part of the schedule in the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import TIMEOUT_MAX, Event
from typing import Any

from jobs.contrib.schedules.ticks import SCHEDULES, Ticks
from jobs.doors import Attempt, Extension

#: Seconds after an error until the thread looks again.
LOOK_AGAIN = 1.0


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
        from jobs.contrib.schedules import inline

        return inline.tick(app, using, clock)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.schedules import admin

        return {"panel": admin.panel(request, about["schedules"])} if page == "dashboard" else {}

    def reasons(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.schedules import rows

        return rows.reasons(view)
