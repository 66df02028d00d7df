"""What of the events takes part in the core."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from threading import Event
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.doors import Attempt, Extension, Thread
from jobs.inspection.problems import Kind, Link


def _place(way: Any) -> Link:
    return Link(_("Show them"), "event_changelist", query={"way": way})


def hand_on(stopping: Event, attempt: Attempt) -> None:
    from jobs.events import relay

    thread = relay.RelayThread()
    while not stopping.is_set():
        attempt(thread.run_once)
        thread.wait()


class Events(Extension):
    kinds = {
        "events_waiting": Kind(
            severity="error",
            many=ngettext_lazy("%(number)s event does not get on", "%(number)s events do not get on", "number"),
            before="dead",
            place=_place,
        ),
        "events_problem": Kind(
            severity="warning",
            many=ngettext_lazy("%(number)s event has a problem", "%(number)s events have problems", "number"),
            before="dead",
            place=_place,
        ),
    }

    @property
    def looks(self) -> Mapping[str, str]:  # type: ignore[override]
        from jobs.events import store

        return store.LOOKS

    def threads(self) -> list[Thread]:
        return [hand_on]

    def registered(self) -> None:
        from jobs.events import relay

        # The handlers are written once more for this node.
        relay.wakeup.set()

    def heard(self, told: Collection[str] | None) -> None:
        from jobs.events import outbox, relay

        if told is None or outbox.WAKEUP in told:
            relay.wakeup.set()

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.events import order, relay
        from jobs.store import databases

        if any(each["is_told"] for each in answers.values()):
            relay.wakeup.set()
        databases.everywhere(order.look_for_stuck, [using for using, each in answers.items() if each["is_behind"]])

    def prune(self, using: str, budget: float) -> None:
        from jobs.events import prune

        prune.prune(using, budget)

    def idle(self, app: Any, using: str) -> bool:
        from jobs.events import order, relay

        return relay.hand_on_here(app, using) or bool(order.release_stuck(using))

    def again(self, jobs: Any, using: str) -> dict[str, Any]:
        from jobs.events import order

        return order.again(jobs, using)

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.events import stages

        return stages.problems()

    def metrics(self) -> Iterator[tuple[str, str, list[str], Any]]:
        from jobs.events import stages

        return stages.metrics()

    def job_page(self, request: Any, view: Any) -> tuple[str, str]:
        from jobs.events import admin

        return admin.job_page(request, view)

    def link(self, using: str, key: Any) -> str:
        from jobs.events import admin

        return admin.link(using, key)

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.events import stages

        return stages.reasons(view)
