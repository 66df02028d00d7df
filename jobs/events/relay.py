"""The subscriptions of handlers, and handing events on: a job for each handler, committed with the note of that.

One process at a time hands events on: the one that has locked the only row of ``Relay``. So jobs come in the order of
the events, and no event is handed on twice.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import partial
from threading import Event as Signal
from typing import Any

from django.db import connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from jobs.calling import calls, outbox
from jobs.conf import conf, import_tasks, is_ours, loaded_app
from jobs.conf.logs import logger
from jobs.conf.syncpoints import reach
from jobs.contrib.messages.receiving import mark
from jobs.doors import Attempt
from jobs.events import order, store
from jobs.events.doors import wakeup
from jobs.events.models import ARGS, EVENT_HEADER, UNRELAYED, Event, Relay, Subscription
from jobs.events.services import publisher, service
from jobs.lifecycle.transitions import NEVER, now_plus
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Node, State
from jobs.models.fields import uuid7
from jobs.models.values import named
from jobs.store import databases, of

#: Seconds after which handlers that only dead workers know are forgotten. Later events make no jobs for them.
GRACE = 3600.0

#: Events of one transaction, at the most.
LIMIT = 500

#: Seconds for which a process may hold the lock and do nothing.
STILL = 5

#: Seconds between two looks for events: on SQLite, where each write may be one, and while another process hands on.
SOON = 0.05

#: Seconds between two looks for handlers that are gone, when a worker also writes its own handlers again; and after
#: which a worker that began earlier may take over a subscription that no worker has written.
RARELY, LEFT = 60.0, 180.0

#: How many changes of a handler's pattern or version are remembered, beside the first.
PERIODS = 50

#: The columns of a subscription that a deploy may change.
_CHANGES = ("pattern", "version", "queue", "rank", "is_ordered", "keep_failed")


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern (``shop.order.*``, ``shop.#``) names the event, as RabbitMQ's topic exchanges do.

    Any sender may have written either of them: the steps are at most the product of their numbers of words.
    """
    if pattern == name:
        return True
    words = name.split(".") if name else []
    #: How many words of the name the words of the pattern that were read so far may stand for.
    counts = {0}
    for word in pattern.split("."):
        if word == "#":
            counts = {*range(min(counts), len(words) + 1)}
        else:
            counts = {count + 1 for count in counts if count < len(words) and word in ("*", words[count])}
        if not counts:
            return False
    return len(words) in counts


def has_had(row: Subscription, event: Event) -> bool:
    """Whether the handler existed, and wanted the event, when the event was handed on."""
    for pattern, version, since in periods(row):
        if event.relayed_at is not None and since < event.relayed_at:
            return version in (None, event.version) and matches(pattern, event.name)
    return False


def periods(row: Subscription) -> list[tuple[str, int | None, datetime.datetime]]:
    """What the handler wanted, and since when; the newest first."""
    before = [(pattern, version, datetime.datetime.fromisoformat(since)) for pattern, version, since in row.before]
    return [(row.pattern, row.version, row.since), *reversed(before)]


def subscribe(app: Any, using: str) -> None:
    """Write what the handlers of this code subscribe to, and log what is new.

    While workers with two versions of the code run, the one that began last counts. An older one may register after
    it, because it was started again or was taken for dead.
    """
    rows = Subscription.objects.using(using)
    known = {row.handler: row for row in rows.filter(service=service())}
    now = databases.clock(using)
    began, left = databases.began(now), now - datetime.timedelta(seconds=LEFT)
    mine = []
    for name, task in sorted(app.tasks.items()):
        if (subscribes := getattr(task, "subscribes", None)) is None or not is_ours(task):
            continue
        route = app.amqp.router.route({}, name, (), {}, task)
        queue: Any = getattr(task, "queue", None) or route.get("queue")
        each = Subscription(
            service=service(),
            handler=name,
            queue=calls.name_of(queue) or str(app.conf.task_default_queue),
            rank=calls.rank_of(app, getattr(task, "priority", None) or 0),
            defined_at=began,
            seen_at=now,
            **subscribes,
        )
        row = known.get(name)
        is_same = row is not None and all(getattr(row, column) == getattr(each, column) for column in _CHANGES)
        if row is not None:
            if is_same:
                each.defined_at = max(began, row.defined_at)
            elif row.defined_at > began + databases.SAME and row.seen_at > left:
                text = "%s handles %s, as a newer worker says, and not %s"
                logger.info(text, name, _said(row), _said(each), extra={"action": "subscription_kept"})
                continue
            if (row.pattern, row.version) == (each.pattern, each.version):
                each.since, each.before = row.since, row.before
            else:
                # For the new pattern, events from before this moment are neither missed nor handled.
                before = [*row.before, [row.pattern, row.version, row.since.isoformat()]]
                each.before = before[:1] + before[1:][-PERIODS:]
        mine.append(each)
        if not is_same:
            logger.info("%s handles %s from now on", name, each.pattern, extra={"action": "subscribed"})
    changes = (*_CHANGES, "since", "before", "defined_at", "seen_at")
    # MySQL takes any unique key for it, and there is one.
    names = connections[using].features.supports_update_conflicts_with_target
    unique = ["service", "handler"] if names else None
    rows.bulk_create(mine, update_conflicts=True, unique_fields=unique, update_fields=changes)


def _said(row: Subscription) -> str:
    return row.pattern if row.version is None else f"{row.pattern} version {row.version}"


def forget_gone(using: str) -> None:
    """Delete subscriptions of handlers that no worker knows, of those alive now or within the last :data:`GRACE`.

    Race: a worker that starts writes its node before its subscriptions, so this reads the subscriptions first.
    """
    rows = list(Subscription.objects.using(using).filter(service=service()))
    nodes = Node.objects.using(using).filter(Q(dead_at=None) | Q(dead_at__gt=now_plus(-GRACE)))
    known = {name for tasks in nodes.values_list("tasks", flat=True) for name in tasks}
    gone = [row for row in rows if row.handler not in known]
    if len(gone) == len(rows):
        # No worker of this service is there to say which handlers it has.
        return
    for row in gone:
        row.delete(using=using)
        logger.info("%s handles %s no longer", row.handler, row.pattern, extra={"action": "unsubscribed"})


def lock(using: str, waits: bool = True) -> Any:
    """Lock the row that allows to hand events on, until the transaction ends. None: another process has locked it."""
    # Otherwise a process that hangs would keep this row until it is found dead.
    of(using).end_if_idle(STILL)
    rows = Relay.objects.using(using).filter(pk=1)
    found = (rows.select_for_update() if waits else databases.free(rows)).first()
    # Race: another process may have inserted the row since.
    if found is None and (waits or not rows.exists()):
        Relay.objects.using(using).bulk_create([Relay(pk=1)], ignore_conflicts=True)
        found = rows.select_for_update().get()
    return found


def hand_on(app: Any, using: str) -> int | None:
    """Hand on the next events that were told here; returns how many. None: another process does it."""
    waiting = Event.objects.using(using).filter(UNRELAYED).order_by("id")
    if not waiting.exists():
        return 0
    with transaction.atomic(using=using):
        if (relay := lock(using, waits=False)) is None:
            return None
        events, values = list(waiting[:LIMIT]), dict[str, Any](relayed_at=Now())
        if (broker := publisher()) is not None:
            values |= broker.give_numbers(using, events)
        make_jobs(app, using, relay, events)
        Event.objects.using(using).filter(pk__in=[event.pk for event in events]).update(**values)
        reach("before_relay")
    reach("after_relay")
    return len(events)


def make_jobs(
    app: Any,
    using: str,
    relay: Relay,
    events: Iterable[Event],
    to: str | None = None,
    again: str | None = None,
    without: Container[tuple[uuid.UUID | None, str]] = (),
) -> dict[int, int]:
    """Make a job for each event and handler, in the transaction that locked the relay; how many, by the event's ``pk``.

    Parameters:
        to: only for the handlers of this service.
        again: the number of the replay that has them handled again; None: they are not handled again.
        without: pairs of an event's id and a handler that has had the event.
    """
    known = list(Subscription.objects.using(using).filter(**{"service": to} if to else {}))
    found: dict[int, int] = {}
    plain: list[Any] = []
    ordered: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        # A service that was renamed has two subscriptions for one handler, and the same workers run both.
        handlers = {
            (each.handler, each.queue): each
            for each in known
            if each.version in (None, event.version)
            and matches(each.pattern, event.name)
            and (event.uuid, each.handler) not in without
        }
        found[event.pk] = len(handlers)
        for each in handlers.values():
            job: Any = _job(event, each, again)
            mark(app, job)
            if event.order_key is not None and each.is_ordered:
                job.order_key = named(each.handler, event.order_key)
                ordered[job.order_key].append(job)
            else:
                plain.append(job)
    busy = set()
    if ordered:
        store.lock(using, ordered)
        busy = store.busy(using, ordered)
    behind = []
    for key, jobs in ordered.items():
        free = 0 if key in busy else 1
        plain += jobs[:free]
        behind += jobs[free:]
    for job in behind:
        relay.place += 1
        job.order_position, job.state, job.run_at = relay.place, State.SCHEDULED, NEVER
    if behind:
        relay.save(using=using, update_fields=["place"])
        # Race: the job before them may have ended since ``store.busy``, and its process saw no job to release.
        transaction.on_commit(partial(order.release, using, busy), using=using, robust=True)
    for part in (plain, behind):
        outbox.record(part, using, app)
    return found


def handled(using: str, events: Sequence[Event], to: str, mark: str | None) -> set[tuple[uuid.UUID | None, str]]:
    """Which handlers have had which events: pairs of an event's id and a handler."""
    jobs = Job.objects.using(using).filter(parent_id__in=[event.uuid for event in events])
    if mark is not None:
        jobs = jobs.filter(options__headers__event__again=mark)
    found = {(job.parent_id, job.task) for job in jobs.only("parent_id", "task")}
    if mark is None:
        # The job may be pruned.
        for row in Subscription.objects.using(using).filter(service=to):
            found |= {(event.uuid, row.handler) for event in events if has_had(row, event)}
    return found


def _job(event: Event, to: Subscription, again: str | None) -> Job:
    about = {name: getattr(event, name) for name in ("name", "version", "source", "order_key")}
    about |= {"id": str(event.uuid), "at": event.at.isoformat()} | ({} if again is None else {"again": again})
    headers = dict(event.headers)
    goes = {"task": to.handler, "queue": to.queue, "rank": to.rank}
    says = {"args": headers.pop(ARGS, []), "kwargs": event.data, "parent_id": event.uuid}
    return Job.of({"id": uuid7(), **goes, **says, "options": {"headers": {**headers, EVENT_HEADER: about}}})


def hand_on_here(app: Any, using: str) -> bool:
    """For ``run_jobs()``: hand on what was told of. All handlers have to be imported for that."""
    if not Event.objects.using(using).filter(UNRELAYED).exists():
        return False
    import_tasks(app)
    subscribe(app, using)
    return bool(hand_on(app, using))


class RelayThread:
    """Hands on events, in a worker's supervisor. All supervisors try, and one at a time does it."""

    def __init__(self) -> None:
        self._app = loaded_app()
        #: For each database: the node for which the handlers were written.
        self._registered: dict[str, uuid.UUID] = {}
        self._look_at = time.monotonic() + RARELY

    def run(self, stopping: Signal, attempt: Attempt) -> None:
        while not stopping.is_set():
            attempt(self.run_once)
            # If a wake-up gets lost, the tick of the clock finds the events.
            wakeup.wait()
            if any(of(using).has_one_writer for using in conf().DATABASES):
                time.sleep(SOON)
            wakeup.clear()

    def run_once(self) -> None:
        if self._app is None:
            return
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + RARELY
            self._registered.clear()
            databases.everywhere(forget_gone)
        databases.everywhere(self._register)
        databases.everywhere(self._hand_on)

    def _register(self, using: str) -> None:
        """Write the handlers for each node, and again once a minute.

        The handlers of a node that was taken for dead may have been deleted.
        """
        node = worker_state.node
        if self._registered.get(using) == node:
            return
        with transaction.atomic(using=using):
            # Race: a new handler does not get the events that are being handed on now: its ``since`` has to be later.
            lock(using)
            subscribe(self._app, using)
        if Node.objects.using(using).filter(pk=node).exists():
            # Until the node is written, another worker may delete its handlers.
            self._registered[using] = node

    def _hand_on(self, using: str) -> None:
        while (count := hand_on(self._app, using)) != 0:
            if count is None:
                # The other process may have looked before this event was committed.
                time.sleep(SOON)
            if (broker := publisher()) is not None:
                broker.numbered.set()
