"""The part of the events in the core."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Event
from typing import Any

from jobs.doors import Attempt, Extension, Thread


def hand_on(stopping: Event, attempt: Attempt) -> None:
    from jobs.events import relay

    thread = relay.RelayThread()
    while not stopping.is_set():
        attempt(thread.run_once)
        thread.wait()


class Events(Extension):
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

    def idle(self, app: Any, using: str, clock: Any) -> bool:
        from jobs.events import order, relay

        return relay.hand_on_here(app, using) or bool(order.release_stuck(using))

    def again(self, jobs: Any, using: str) -> dict[str, Any]:
        from jobs.events import order

        return order.again(jobs, using)
