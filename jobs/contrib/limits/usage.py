"""Which limits are in force, how far they are used, and which of them keeps a job waiting."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext

from jobs.conf import conf, loaded_app
from jobs.contrib.inspection.counts import MOST, at_least
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import Reason, View
from jobs.contrib.limits import limits
from jobs.contrib.limits.limits import Limits, name_of
from jobs.contrib.limits.models import RateLimiter
from jobs.contrib.limits.rates import Limit
from jobs.models import CLAIMABLE, LINED, SEATED, Job, State
from jobs.store import databases

SHOWN = 5  #: How many of the jobs that have a limit's slots are named.


def in_force() -> Limits:
    return limits.in_force(loaded_app(), limits.read())


def keeps(job: Job, known: Limits) -> dict[str, Any] | None:
    """The limit that keeps a ready job waiting, if one does: which it is, and the ``jobs`` that have its slots.

    For a rate: in how many ``seconds`` the next job may start.
    """
    using, key, running = str(job._state.db), job.limit_key or job.task, Job.objects.filter(state=State.RUNNING)
    of_task = known.tasks.get(job.task), key, key, Q(limit_key=key, limit_slot__isnull=False)
    of_queue = known.queues.get(job.queue), name_of(job.queue), job.queue, Q(SEATED, queue=job.queue)
    for limit, limiter, name, with_slot in (of_task, of_queue):
        if limit is None:
            continue
        placed_now = running.using(using).filter(with_slot)
        if limit.slots is not None and placed_now.count() >= limit.slots:
            runs = placed_now.order_by("started_at").values_list("pk", flat=True)[:SHOWN]
            return {"kind": "concurrency", "of": name, "limit": limit.slots, "jobs": [str(each) for each in runs]}
        state = RateLimiter.objects.using(using).filter(pk=limiter).first() if limit.pause else None
        if state is not None and (seconds := limit.opens_in(state, databases.epoch(using))):
            return {"kind": "rate", "of": name, "limit": limit.rate, "seconds": seconds}
    return None


def free(queue: str, rows: QuerySet[Job]) -> QuerySet[Job]:
    """The ready jobs of a queue that no limit can keep waiting."""
    return rows.none() if queue in in_force().queues else rows.filter(limit_key=None)


def usage() -> list[dict[str, Any]]:
    """Each limit in force: how many of its jobs run, and whether it is reached while more jobs wait."""
    given = limits.read()
    app = loaded_app()
    known = limits.in_force(app, given)
    of = {**{name_of(queue): each for queue, each in known.queues.items()}, **known.tasks}
    # Limits that a person removed, with a rate of 0.
    of |= {name: Limit() for name in given if name not in of}
    found: dict[str, dict[str, Any]] = {}
    for name, limit in of.items():
        row = found[name] = {"name": name.removeprefix("@"), "kind": "queue" if name.startswith("@") else "task"}
        row |= {"concurrency": limit.slots, "rate": limit.rate, "by_hand": name in given}
        # The limit holds for every key on its own.
        per = getattr(app and app.tasks.get(name), "key_templates", {}).get("limit_key")
        row["per"] = per and getattr(per.template, "__name__", str(per.template))
        row |= {"running": 0, "reached": None, "next_in": None}
    for alias in conf().DATABASES if of else ():
        _note_use(alias, of, found)
    return list(found.values())


def _note_use(using: str, of: Mapping[str, Limit], found: dict[str, dict[str, Any]]) -> None:
    """Note how far each limit is used: a fixed number of statements for all, and one more for each that is reached."""
    jobs, used = Job.objects.using(using), defaultdict[str, Counter[str]](Counter)
    with_slot = jobs.filter(Q(limit_key__isnull=False) | SEATED, state=State.RUNNING)
    # Count() of a column leaves out the rows where it is null.
    counts = with_slot.values_list("task", "queue", "limit_key").annotate(Count("limit_key"), Count("queue_slot"))
    for task, queue, key, of_task, of_queue in counts:
        used[task][str(key)] += of_task
        used[name_of(queue)][queue] += of_queue
    limiters = RateLimiter.objects.using(using).in_bulk([*of])
    now = databases.epoch(using) if limiters else 0.0
    for name, limit in of.items():
        row, slots = found[name], used[name]
        row["running"] += slots.total()
        seconds = limit.opens_in(limiters.get(name), now)
        full = [key for key, count in slots.items() if limit.slots is not None and count >= limit.slots]
        if full or seconds:
            in_line = Q(LINED, limit_key__in=[*full, name])
            waits = jobs.filter(Q(CLAIMABLE, queue=row["name"]) if row["kind"] == "queue" else in_line)
            if waits.values_list("pk")[:1]:
                row["reached"] = "concurrency" if full else "rate"
                row["next_in"] = round(seconds, 3) if seconds and not full else None


def waiting() -> Callable[[str], str]:
    """How many jobs of a task with a limit are ready, for people: among the first :data:`MOST`, or in its only line."""
    rows = Job.objects.filter(LINED).order_by("limit_key", "queue", "rank", "run_at", "pk")
    seen = Counter(task for each in databases.each(rows) for task in each.values_list("task", flat=True)[:MOST])
    capped = seen.total() >= MOST

    def number(task: str) -> str:
        own = databases.each(rows.filter(limit_key=task)) if capped else ()
        return at_least(max(seen[task], sum(each[:MOST].count() for each in own)), capped)

    return number


def waits(view: View) -> Iterator[Reason]:
    """The job waits because a limit of its task or its queue is reached."""
    job = view.job
    if job.state != State.READY or (found := keeps(job, in_force())) is None:
        return
    if found["of"] == job.limit_key != job.task:
        found["of"] = view.seen.text("key", found["of"])
    mine = Job.objects.using(view.using).filter(LINED, limit_key=job.limit_key, queue=job.queue)
    ahead = 0 if job.limit_key is None else view.ahead_of(mine)
    words = {"ahead": at_least(ahead, ahead == MOST), "since": duration(max(0.0, view.since(job.run_at)))}
    if found["kind"] == "concurrency":
        says = gettext(
            "It waits for a slot: of %(of)s at most %(limit)s may run at once, and so many do (%(holders)s). Waiting "
            "before it in its limit: %(ahead)s."
        )
        words["holders"] = ", ".join(found["jobs"])
        # The jobs that had the slots may have ended a moment ago.
        code, cure = "limit_reached", f"manage.py jobs why {found['jobs'][0]}" if found["jobs"] else ""
    else:
        says = gettext(
            "It waits for the rate of %(of)s, %(limit)s: the next job starts in %(next)s. Waiting before it in its "
            "limit: %(ahead)s."
        )
        words["next"], code, cure = duration(found["seconds"]), "rate_reached", ""
    yield Reason(code, says, cure, {**found, **words}, **found, ahead=ahead, due_seconds=view.since(job.run_at))
