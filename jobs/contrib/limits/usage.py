"""Which limits hold, and how far they are used."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import Count, Q, QuerySet

from jobs.conf import conf, loaded_app
from jobs.contrib.limits import limits
from jobs.contrib.limits.limits import Limits, name_of
from jobs.contrib.limits.models import RateLimiter
from jobs.contrib.limits.rates import Limit
from jobs.inspection.counts import MOST, at_least
from jobs.models import CLAIMABLE, LINED, SEATED, Job, State
from jobs.store import databases


def in_force() -> Limits:
    return limits.in_force(loaded_app(), limits.read())


def free(queue: str, rows: QuerySet[Job]) -> QuerySet[Job]:
    """Those of the ready jobs of a queue that no limit can keep."""
    return rows.none() if queue in in_force().queues else rows.filter(limit_key=None)


def usage() -> list[dict[str, Any]]:
    """Each limit that holds: how many run, and whether it is reached while others wait."""
    given = limits.read()
    app = loaded_app()
    known = limits.in_force(app, given)
    of = {**{name_of(queue): each for queue, each in known.queues.items()}, **known.tasks}
    # Those that somebody took away by hand, with a rate of 0.
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
    """Note how far each limit is used, in as many statements for many as for one, and one for each that is reached."""
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
    """How many jobs of a task with a limit are ready, for people: of the first :data:`MOST`, or of its one line."""
    rows = Job.objects.filter(LINED).order_by("limit_key", "queue", "rank", "run_at", "pk")
    seen = Counter(task for each in databases.each(rows) for task in each.values_list("task", flat=True)[:MOST])
    capped = seen.total() >= MOST

    def number(task: str) -> str:
        own = databases.each(rows.filter(limit_key=task)) if capped else ()
        return at_least(max(seen[task], sum(each[:MOST].count() for each in own)), capped)

    return number
