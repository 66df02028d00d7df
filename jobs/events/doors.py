"""What of the events takes part in the core."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from threading import Event
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.doors import Attempt, Extension, Kind, Thread

#: Whether a job waits behind another one.
WAITS = (
    "order_key IS NOT NULL AND order_place IS NOT NULL AND state IN ('scheduled', 'ready', 'running') "
    "AND state = 'scheduled'"
)


def _place(way: Any) -> tuple[Any, str]:
    from jobs.admin.html import url_of

    return _("Show them"), url_of("event_changelist", way=way)


def hand_on(stopping: Event, attempt: Attempt) -> None:
    from jobs.events import publisher, relay

    post = relay.Post()
    while not stopping.is_set():
        attempt(post.run_once)
        post.wait()
    # The publisher waits for it, and is to end as well.
    publisher.numbered.set()


def send(stopping: Event, attempt: Attempt) -> None:
    from jobs.events.publisher import Publisher

    Publisher().run(stopping)


def receive(stopping: Event, attempt: Attempt) -> None:
    from jobs.conf import loaded_app
    from jobs.events.receiver import Receiver

    if (app := loaded_app()) is None:
        stopping.wait()
    else:
        Receiver(app).run(stopping)


class Events(Extension):
    looks = {
        "is_told": "EXISTS (SELECT 1 FROM jobs_event WHERE relayed_at IS NULL AND received_at IS NULL)",
        "is_behind": f"{{rare}} AND EXISTS (SELECT 1 FROM jobs_job WHERE {WAITS})",
    }
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

    def threads(self) -> list[Thread]:
        from jobs.conf import conf

        return [hand_on] if conf().EVENT_BROKER is None else [hand_on, send, receive]

    def registered(self) -> None:
        from jobs.events import relay

        # The handlers are written once more for this node.
        relay.told.set()

    def heard(self, rings: Collection[str] | None) -> None:
        from jobs.events import outbox, relay

        if rings is None or outbox.RING in rings:
            relay.told.set()

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.events import order, relay
        from jobs.store import databases

        if any(each["is_told"] for each in answers.values()):
            relay.told.set()
        databases.everywhere(order.look_for_stuck, [using for using, each in answers.items() if each["is_behind"]])

    def prune(self, using: str, budget: float) -> None:
        from jobs.events import prune

        prune.prune(using, budget)

    def idle(self, app: Any, using: str) -> bool:
        from jobs.events import order, relay

        return relay.hand_on_here(app, using) or bool(order.let_in_stuck(using))

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

    def checks_of_tasks(self, app: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        from jobs.events import declare

        if lost := {*declare.lost_handlers()}:
            yield "W025", {"modules": lost}
