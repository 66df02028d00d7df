"""How far events are, how late their handlers, and where one of them has led."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from django.db.models import Count, Min, Q
from django.utils import timezone
from django.utils.translation import gettext

from jobs.conf import conf
from jobs.contrib.event_operator.store import any_of, handled
from jobs.contrib.inspection.counts import MOST, at_least
from jobs.contrib.inspection.view import Other, Reason, View
from jobs.events.models import PARKED, UNRELAYED, UNSENT, Event, Subscription
from jobs.models import LIVE, Job, State
from jobs.models.fields import time_of
from jobs.store import databases

#: What people look for: each has an index of its own.
OPEN: dict[str, Q] = {
    "unrelayed": UNRELAYED,
    "unsent": UNSENT,
    "parked": PARKED,
    "problem": Q(problem__isnull=False),
}


def stage(event: Event) -> str:
    """How far an event is: a name of :data:`OPEN`, or ``received``, ``sent`` or ``relayed``."""
    if event.problem is not None:
        return "problem"
    if event.relayed_at is None:
        return "unrelayed" if event.received_at is None else "parked"
    if event.received_at is not None:
        return "received"
    if event.sent_at is not None:
        return "sent"
    return "relayed" if event.number is None else "unsent"


def other(what: Any) -> Other | None:
    """The event with this id, for pages that link to it."""
    rows = Event.objects.filter(uuid=what).only("id", "uuid", "name") if isinstance(what, uuid.UUID) else None
    if rows is None or (event := databases.first(rows)) is None:
        return None
    label = gettext("the event %(name)s") % {"name": event.name}
    return Other(event, (f"{label} {what}", "event_change", event.pk))


class Backlog(NamedTuple):
    """How many events of a kind there are (:data:`MOST` are counted), and for how many seconds the oldest is there."""

    number: int
    seconds: float


def backlog(using: str) -> dict[str, Backlog]:
    """The backlog of each kind of :data:`OPEN`, read along its index."""
    every = {name: Event.objects.using(using).filter(condition).order_by("id") for name, condition in OPEN.items()}
    # Mostly there is no backlog: one statement asks for all kinds.
    there = any_of(using, {name: rows.values("id")[:1] for name, rows in every.items()})
    found = dict.fromkeys(OPEN, Backlog(0, 0.0))
    now = databases.clock(using) if there else None
    for name in there:
        since = Min("received_at" if name == "parked" else "at")
        each = every[name][:MOST].aggregate(number=Count("pk"), since=since)
        age = (now - each["since"]).total_seconds() if now and each["since"] else 0.0
        found[name] = Backlog(each["number"], max(0.0, age))
    return found


def summed() -> dict[str, Backlog]:
    """The backlog of each kind, over all job databases."""
    every = [backlog(alias) for alias in conf().DATABASES]
    return {
        name: Backlog(sum(each[name].number for each in every), max(each[name].seconds for each in every))
        for name in OPEN
    }


# The handlers


class Lag(NamedTuple):
    """How many of a handler's jobs have not ended, for how many seconds the oldest is there, and how many failed."""

    waiting: int = 0
    seconds: float = 0.0
    failed: int = 0


def lags(using: str, handlers: Iterable[tuple[str, str]]) -> dict[str, Lag]:
    """The lag of each handler, by the name of its task, in one statement.

    Parameters:
        handlers: the name of the task and its queue.
    """
    pairs = list(handlers)
    if not pairs:
        return {}
    tasks, queues = map(set, zip(*pairs, strict=True))
    found: dict[str, Lag] = defaultdict(Lag)
    now = timezone.now()
    for task, is_failed, number, first in handled(using, tasks, queues, MOST):
        if is_failed:
            found[task] = found[task]._replace(failed=number)
        else:
            age = now - (time_of(uuid.UUID(first)) or now)
            found[task] = found[task]._replace(waiting=number, seconds=max(0.0, age.total_seconds()))
    return found


def all_lags() -> dict[tuple[str, str], Lag]:
    """The lag of every handler in all job databases, by its service and name."""
    found: dict[tuple[str, str], Lag] = {}
    handlers = Subscription.objects.order_by("service", "handler").values_list("service", "handler", "queue")
    for rows in databases.each(handlers):
        known = list(rows)
        late = lags(rows.db, [(handler, queue) for _, handler, queue in known])
        found |= {(service, handler): late.get(handler, Lag()) for service, handler, _ in known}
    return found


# What needs attention, and what Prometheus scrapes


def metrics() -> Iterator[tuple[str, str, list[str], Any]]:
    waits, late = cache(summed), cache(all_lags)

    def of_events(key: str) -> Any:
        return lambda found: [([name], getattr(each, key)) for name, each in waits().items()]

    def of_handlers(key: str) -> Any:
        return lambda found: [(names, getattr(lag, key)) for names, lag in late().items()]

    status, handler = ["status"], ["service", "handler"]
    yield "jobs_events", f"Events that do not get on; {MOST} are counted.", status, of_events("number")
    yield "jobs_events_oldest_seconds", "How old the oldest of them is.", status, of_events("seconds")
    yield "jobs_handler_waiting", "Jobs of a handler that have not ended.", handler, of_handlers("waiting")
    yield "jobs_handler_lag_seconds", "How old the oldest of them is.", handler, of_handlers("seconds")
    yield "jobs_handler_failed", f"Failed ones among the {MOST} newest.", handler, of_handlers("failed")


# A handler's job


def reasons(view: View) -> Iterator[Reason]:
    """Events of one order key are handled one after the other."""
    job: Any = view.job
    if job.order_position is None:
        return
    key = view.seen.text("key", job.order_key)
    line = Job.objects.using(view.using).filter(order_key=job.order_key, state__in=LIVE)
    out = line.filter(order_position=None).first()
    ahead = line.filter(order_position__lt=job.order_position)[:MOST].count()
    if out is None:
        says = gettext("It waits behind others of its order key (%(key)s), and a worker lets the first of them in now.")
        yield Reason("in_order", says, "", {"key": key}, order_key=key, ahead=ahead)
        return
    says = gettext(
        "It waits behind others of its order key (%(key)s): %(out)s is %(state)s, and %(ahead)s more come before it."
    )
    words = {"key": key, "out": out.pk, "state": State(out.state).label}
    words["ahead"] = at_least(ahead, ahead == MOST)
    evidence = {"order_key": key, "job": out.pk, "ahead": ahead}
    yield Reason("in_order", says, f"manage.py jobs why {out.pk}", words, **evidence)


# One event's way

DEPTH, SHOWN = 5, 100  #: At most this many steps, and rows of each step, are shown.


class Way(NamedTuple):
    """What an event has led to: jobs by what made them (an event or a job), and events by the job that told of them."""

    jobs: dict[Any, list[Job]]
    events: dict[Any, list[Event]]
    is_cut: bool  #: Whether there is more than was read.


def way(event: Event, using: str) -> Way:
    jobs: dict[Any, list[Job]] = defaultdict(list)
    events: dict[Any, list[Event]] = defaultdict(list)
    level, is_cut = {event.uuid}, False
    for _ in range(DEPTH):
        if not level:
            break
        rows = Job.objects.using(using).only("id", "task", "state", "lease", "parent_id", "queue")
        called = list(rows.filter(parent_id__in=level).order_by("pk")[: SHOWN + 1])
        told = told_by(using, [job.pk for job in called])
        is_cut = is_cut or len(called) > SHOWN or len(told) > SHOWN
        for job in called[:SHOWN]:
            jobs[job.parent_id].append(job)
        for each in told[:SHOWN]:
            events[each.job].append(each)
        level = {job.pk for job in called[:SHOWN]} | {each.uuid for each in told[:SHOWN]}
    return Way(jobs, events, is_cut or bool(level))


def told_by(using: str, jobs: list[Any]) -> list[Event]:
    """The events that the bodies of these jobs told of, without their data."""
    rows = Event.objects.using(using).filter(job__in=jobs).order_by("id").defer("data", "headers")
    return list(rows[: SHOWN + 1])
