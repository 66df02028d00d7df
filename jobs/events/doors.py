"""The part of the events in the core."""

import threading
from collections.abc import Collection, Mapping
from typing import Any

from jobs.doors import Extension, Thread

#: In the supervisor: events wait to be handed on.
wakeup = threading.Event()

#: The text of the notification in that case; no queue has this name.
WAKEUP = "\tevents"


class Events(Extension):
    @property
    def looks(self) -> Mapping[str, str]:  # type: ignore[override]
        from jobs.events import store

        return store.LOOKS

    def threads(self) -> list[Thread]:
        from jobs.events import relay

        return [relay.RelayThread().run]

    def registered(self) -> None:
        # So that the handlers are written again, for this node.
        wakeup.set()

    def heard(self, told: Collection[str] | None) -> None:
        if told is None or WAKEUP in told:
            wakeup.set()

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.events import order
        from jobs.store import databases

        if any(each["is_told"] for each in answers.values()):
            wakeup.set()
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

    def disown(self, using: str, is_dry: bool) -> Mapping[str, int]:
        from jobs.events.models import PARKED, UNRELAYED, UNSENT, Event

        # The original hands them on as well.
        found = Event.objects.using(using).filter(UNRELAYED | PARKED | UNSENT)
        return {"events": found.count() if is_dry else found.order_by().delete()[0]}
