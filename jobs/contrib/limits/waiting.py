"""Why a job waits for a limit."""

from collections.abc import Iterator
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext

from jobs.contrib.limits.limits import Limits, name_of
from jobs.contrib.limits.models import RateLimiter
from jobs.contrib.limits.usage import in_force
from jobs.inspection.counts import MOST, at_least
from jobs.inspection.times import duration
from jobs.inspection.view import Reason, View
from jobs.models import LINED, SEATED, Job, State
from jobs.store import databases

SHOWN = 5  #: So many of the jobs that have a limit's slots are named.


def waits(view: View) -> Iterator[Reason]:
    """A limit of its task or its queue is reached."""
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
        # They may have ended a moment ago.
        code, cure = "limit_reached", f"manage.py jobs why {found['jobs'][0]}" if found["jobs"] else ""
    else:
        says = gettext(
            "It waits for the rate of %(of)s, %(limit)s: the next job starts in %(next)s. Waiting before it in its "
            "limit: %(ahead)s."
        )
        words["next"], code, cure = duration(found["seconds"]), "rate_reached", ""
    yield Reason(code, says, cure, {**found, **words}, **found, ahead=ahead, due_seconds=view.since(job.run_at))


def keeps(job: Job, known: Limits) -> dict[str, Any] | None:
    """The limit that keeps a ready job, if one does.

    Its ``kind`` is ``"concurrency"`` or ``"rate"``; ``of`` a queue or a key of a task; then the ``jobs`` that have its
    slots, or in how many ``seconds`` the next may start.
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
