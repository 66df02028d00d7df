"""Hand events on to their handlers: one job for each, in one transaction with the note that it was done.

One process of all workers does it at a time, whoever has locked the one row of ``Relay``. So jobs come in the order
of the events, and no event is handed on twice.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Any

from celery import Celery
from django.db import connections, transaction
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from jobs.calling import outbox
from jobs.conf import conf
from jobs.conf.syncpoints import reach
from jobs.database import databases
from jobs.events import subscriptions
from jobs.idempotency.keys import named
from jobs.lifecycle import order
from jobs.models import UNRELAYED, Event, Job, Position, Relay, State, Subscription
from jobs.models.fields import uuid7

#: Events of one transaction, at the most.
LIMIT = 500

#: Seconds for which a process may hold the lock and do nothing.
STILL = 5

#: The header of a handler's job that says which event it handles.
HEADER = "event"

#: Among an event's headers: the values without names, of a Celery task that came as an event.
ARGS = "args"


def hand_on(app: Celery, using: str, limit: int = LIMIT) -> int | None:
    """Hand on the next events that were emitted here; returns how many. None: somebody else does it."""
    waiting = Event.objects.using(using).filter(UNRELAYED).order_by("id")
    if not waiting.exists():
        return 0
    with transaction.atomic(using=using):
        relay = lock(using, waits=False)
        if relay is None:
            return None
        events = list(waiting[:limit])
        if conf().EVENT_BROKER is not None:
            _number(using, events)
        make_jobs(app, using, relay, events)
        values: dict[str, Any] = {"relayed_at": Now()}
        if numbers := " ".join(f"WHEN {event.pk} THEN {event.number}" for event in events if event.number):
            values["number"] = RawSQL(f"CASE id {numbers} END", [])
        Event.objects.using(using).filter(pk__in=[event.pk for event in events]).update(**values)
        reach("before_relay")
    reach("after_relay")
    return len(events)


def lock(using: str, waits: bool = True) -> Relay | None:
    """The row that lets events be handed on, until the end of the transaction; None: somebody else has it."""
    rows = Relay.objects.using(using).filter(pk=1)
    found = (rows.select_for_update() if waits else databases.free(rows)).first()
    if found is None and not rows.exists():
        Relay.objects.using(using).bulk_create([Relay(pk=1)], ignore_conflicts=True)
        found = rows.select_for_update().first()
    if connections[using].vendor == "postgresql" and not databases.in_test(using):
        # A process that stands still would keep all others from it, until somebody finds its worker dead.
        with connections[using].cursor() as cursor:
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{STILL}s'")
    return found


def _number(using: str, events: Sequence[Event]) -> None:
    """Give each event its place among those of its name, so that others see what they miss."""
    for (source, name), count in Counter((event.source, event.name) for event in events).items():
        rows = Position.objects.using(using).filter(source=source, name=name)
        position = rows.first() or Position.objects.using(using).create(source=source, name=name)
        mine = [each for each in events if (each.source, each.name) == (source, name)]
        for number, event in enumerate(mine, position.number + 1):
            event.number = number
        rows.update(number=position.number + count)


def make_jobs(
    app: Celery,
    using: str,
    relay: Relay,
    events: Iterable[Event],
    to: str | None = None,
    again: str | None = None,
    without: Container[tuple[uuid.UUID | None, str]] = (),
) -> dict[int, int]:
    """One job for each event and handler, in the transaction that has locked the relay.

    Parameters:
        to: only for the handlers of this service.
        again: the replay for which they are handled once more; None: they never were.
        without: what a handler had already: the event's id and the handler.

    Returns:
        For each event, by its ``pk``, how many jobs were made.
    """
    known = list(Subscription.objects.using(using).filter(**{"service": to} if to else {}))
    found: dict[int, int] = {}
    plain: list[Job] = []
    ordered: dict[str, list[Job]] = defaultdict(list)
    for event in events:
        # A service that was renamed has two subscriptions for one handler, and the same workers run both.
        handlers = {
            (each.handler, each.queue): each
            for each in subscriptions.wanted(known, event.name, event.version)
            if (event.uuid, each.handler) not in without
        }
        found[event.pk] = len(handlers)
        for each in handlers.values():
            job = _job(event, each, again)
            if event.order_key is not None and each.is_ordered:
                job.order_key = named(each.handler, event.order_key)
                ordered[job.order_key].append(job)
            else:
                plain.append(job)
    busy = set()
    if ordered:
        order.lock(using, ordered)
        busy = order.out(using, ordered)
    behind = []
    for key, jobs in ordered.items():
        first, rest = (None, jobs) if key in busy else (jobs[0], jobs[1:])
        plain += [first] if first else []
        behind += rest
    for job in behind:
        relay.place += 1
        job.order_place, job.state, job.run_at = relay.place, State.SCHEDULED, order.NEVER
    if behind:
        relay.save(update_fields=["place"])
        # Race: the one that is out may have ended since, and found nobody behind it.
        transaction.on_commit(partial(order.let_in, using, busy), using=using, robust=True)
    for part in (plain, behind):
        outbox.record(part, using, app)
    return found


def _job(event: Event, to: Subscription, again: str | None) -> Job:
    about: dict[str, Any] = {
        "id": str(event.uuid),
        "name": event.name,
        "version": event.version,
        "source": event.source,
        "at": event.at.isoformat(),
        "order_key": event.order_key,
    }
    headers = dict(event.headers)
    args = headers.pop(ARGS, [])
    if again is not None:
        about["again"] = again
    return Job.of(
        {
            "id": uuid7(),
            "task": to.handler,
            "args": args,
            "kwargs": event.data,
            "queue": to.queue,
            "rank": to.rank,
            "parent_id": event.uuid,
            "options": {"headers": {**headers, HEADER: about}},
        }
    )
