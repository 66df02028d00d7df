"""The claim where limits are in force: it takes a slot, and the rate's permission, in the statement that claims.

Two constraints are the proof: no two running jobs of a limit have the same slot (``jobs_job_limit_slot``,
``jobs_job_queue_slot``), so there are never more of them than slots. A slot is free when its job does not run any
more, for any reason. If two claims choose the same slot, one of them fails and looks again. The rate is one row for
each limit (``RateLimiter``), which one conditional statement moves on.

A claim takes one job of a limit at the most, the first of its line: what waits behind another in a batch would have a
slot, and not use it. A job whose limit is reached stays where it is, and a claim steps over it. If many of
these stand in the way they are *held*: out of the index that claims read, until a worker lets in the first of the line.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from django.db import Error, IntegrityError, transaction
from django.db.models import Min, Q, QuerySet

from jobs import store
from jobs.conf import celery_app, conf
from jobs.conf.logs import logger
from jobs.contrib.limits import limits
from jobs.contrib.limits import store as limited
from jobs.contrib.limits.limits import Limits, name_of
from jobs.contrib.limits.models import RateLimiter
from jobs.contrib.limits.rates import Limit
from jobs.lifecycle import claims
from jobs.lifecycle.wakeups import wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.models import CLAIMABLE, HELD, LINED, SEATED, WAITING, WITH_SLOT, Job, State
from jobs.models.columns import ORDER, POSITION
from jobs.store import databases
from jobs.store.base import Claim

#: From this number on, jobs that stand in the way are held.
CROWD = 50
#: How many jobs of the limit that most of them share are held in one statement.
KIN = 1000
#: How many rows a claim reads beyond those that it asks for: at first, and while some stand in the way.
FEW, MORE = 10, CROWD
#: The same from the beginning of the queue.
WINDOW = 200
#: Seconds between two looks at jobs that are held or in the way, while claims find something.
LOOK = 1.0
#: The same while claims find nothing, however often the process is woken.
QUIET = 0.25
#: How many times a claim goes on after it has moved jobs out of its way.
TRIES = 200
#: How many limiters are looked at together.
LIMITERS = 100
#: How many seconds before its time a job is let in.
AHEAD = 2.0
#: The most jobs, over all limiters, that are let in at once. They stand in the way until their time comes, so they
#: are far fewer than :data:`CROWD`, the number from which on jobs are held again.
LET_IN = CROWD // 2
#: Seconds between two looks at a limiter, however fast its rate is.
SHORTEST_LOOK = 0.05
#: Seconds between two looks at held jobs, however late their rate opens: meanwhile the rate may be changed.
LONGEST_LOOK = 60.0


@dataclass
class Found:
    """What the limits say of the first jobs of a queue."""

    #: Rows that may run now: the row, its slot, and its slot in the queue.
    picked: list[tuple[Any, int | None, int | None]] = field(default_factory=list)
    #: Rows whose limit is reached.
    blocked: list[Any] = field(default_factory=list)
    #: Rows that were called before their task had a limit.
    unmarked: list[Any] = field(default_factory=list)
    #: Seconds until the first rate lets its next job start; infinite: no job waits for a rate.
    opens_in: float = inf
    #: The limiters to move on: as read; from when on the next starts are counted, and the starts after those.
    limiters: dict[str, tuple[RateLimiter | None, float, float]] = field(default_factory=dict)


class LimitedClaimer(claims.Claimer):
    """Claims for one process, and obeys the limits. Without limits it works as :class:`claims.Claimer`."""

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        #: The limits of jobs that this process had claimed and that have left it: their slots may be free.
        self._left: dict[str, set[str]] = defaultdict(set)
        #: Whether some jobs are held back, as this process saw it last.
        self._holds = False
        #: For each database and queue: until when it is claimed as if no task had a limit, because no such job is near.
        self._plain_until: dict[tuple[str, str], float] = {}
        #: For each database and queue: when it next looks at held jobs.
        self._tidy_at: dict[tuple[str, str], float] = {}
        #: For each database and queue: the position of the row that was the first at the last look.
        self._start: dict[tuple[str, str], tuple[Any, ...]] = {}
        #: For each database and queue: until when it ignores held jobs, because none could be let in; and the limits
        #: for which that was found.
        self._known: Limits | None = None
        self._quiet_until: dict[tuple[str, str], float] = {}
        #: The databases and queues at whose beginning more than a few jobs stand in the way.
        self._crowded: set[tuple[str, str]] = set()
        #: For each database and queue: when a rate lets the next job start, on the monotonic clock.
        self._opens_at: dict[tuple[str, str], float] = {}

    @property
    def patience(self) -> float:
        """Seconds until a rate lets the next job start."""
        now = time.monotonic()
        pause = max(0.001, min(self._opens_at.values(), default=inf) - now)
        # A time that has passed counts once: this process may no longer claim from that queue.
        self._opens_at = {spot: at for spot, at in self._opens_at.items() if at > now}
        return pause

    def promising(self, using: str, queues: Sequence[str]) -> Sequence[str]:
        # Only a claim lets in held jobs, so no queue may be skipped.
        return queues if worker_state.holds or self._holds else super().promising(using, queues)

    def note_left(self, jobs: Iterable[Job]) -> None:
        """The jobs of a claim have ended, or wait again."""
        for job in jobs:
            if job.limit_key is not None:
                self._left[str(job._state.db)].add(job.limit_key)

    def may_find_more(self, jobs: Sequence[Job]) -> bool:
        # A claim takes one job of a limit. With a single slot the next job waits for the end of this one.
        tasks = limits.in_force(self.app or celery_app()).tasks
        return any(tasks.get(job.task, Limit(1)).slots != 1 for job in jobs) or super().may_find_more(jobs)

    def take(self, using: str, claim: Claim) -> list[Job]:
        known, spot = limits.in_force(self.app or celery_app()), (using, claim.queue)
        if known is not self._known:
            self._known, self._quiet_until = known, {}
        if not known.tasks and claim.queue not in known.queues and not worker_state.holds:
            self._left.clear()
            self._opens_at.pop(spot, None)
            return super().take(using, claim)
        if time.monotonic() < self._plain_until.get(spot, 0.0):
            plain = claim._replace(without=(*known.tasks, *claim.without))
            if rows := super().take(using, plain):
                return rows
        return self._claim_within(known, using, claim)

    def _claim_within(self, known: Limits, using: str, claim: Claim) -> list[Job]:
        """Claim no more than the limits permit."""
        queue, spot = claim.queue, (using, claim.queue)
        last = self._let_in_left(using, queue, known)
        rows: list[Job] = []
        at_once = store.of(using).writes_at_once
        for _ in range(TRIES):
            now = time.monotonic()
            try:
                # The position of an old look is not used: meanwhile a better job may have come before it.
                start = self._start.get(spot, ()) if now < self._tidy_at.get(spot, 0.0) else ()
                if claim.order is not None:
                    rows = limited.take(using, claim, known, FEW) if at_once else _take_anywhere(using, claim, known)
                    claim = claim._replace(order=None)
                elif start and last:
                    # Read only up to the jobs just let in: behind them are the old index entries of held jobs.
                    rows, last = limited.take(using, claim, known, FEW, start, last), ()
                    self._start[spot] = POSITION(rows[0]) if rows else start
                if start and not rows:
                    more = MORE if spot in self._crowded else FEW
                    rows = limited.take(using, claim, known, more, start)
                    if len(rows) < claim.limit:
                        self._crowded.add(spot)
                if not rows:
                    rows = limited.take(using, claim, known, WINDOW) if at_once else _take_anywhere(using, claim, known)
            except Error as exc:
                is_behind = isinstance(exc, IntegrityError) or databases.sqlstate(exc) == databases.DIVISION_BY_ZERO
                if not is_behind and not databases.is_conflict(exc):
                    raise
                # Race: another claim chose the same slot and took it, or it passed one of the limiters first.
                continue
            if now < (self._tidy_at if rows else self._quiet_until).get(spot, 0.0):
                break
            self._opens_at.pop(spot, None)
            self._tidy_at[spot] = time.monotonic() + LOOK
            self._crowded.discard(spot)
            try:
                may_find_more = self._tidy(using, queue, known)
            except Error as exc:
                # Jobs that were claimed run all the same. If two processes tidy, one may have to give way.
                if not rows and not databases.is_conflict(exc):
                    raise
                break
            if not rows and not may_find_more:
                until = now + QUIET
                self._quiet_until[spot] = min(until, self._opens_at.get(spot, until))
                # Rest only if no queue may have another job.
                spots = ((alias, name) for alias in conf().DATABASES for name in worker_state.queues)
                worker_state.rests_until = min((self._quiet_until.get(each, 0.0) for each in spots), default=0.0)
            if rows or not may_find_more:
                break
        return rows

    def _let_in_left(self, using: str, queue: str, known: Limits) -> tuple[Any, ...]:
        """Let in the jobs behind those that left this process; returns the place of the last one in this queue."""
        if not (left := self._left.pop(using, None)):
            return ()
        found: list[Any] = []
        closed: list[RateLimiter] = []
        if worker_state.holds or self._holds:
            closed = list(RateLimiter.objects.using(using).filter(pk__in=left, look_at__isnull=False))
        for name, place in [each for limiter in closed for each in _let_in(using, limiter, known)]:
            if store.of(using).writes_at_once:
                self._start[using, name] = min(self._start.get((using, name), place), place)
            found += [place] if name == queue else []
        if len(closed) < len(left) or not found:
            # The waiting jobs of these limits are now where all claims look.
            self._quiet_until.clear()
            worker_state.rests_until = 0.0
        return max(found, default=())

    def _tidy(self, using: str, queue: str, known: Limits) -> bool:
        """Let in the jobs whose turn it is, and hold those in the way; returns whether a claim may find more now."""
        spot = (using, queue)
        now = databases.epoch(using)
        closed = RateLimiter.objects.using(using).filter(look_at__isnull=False)
        # A time that is too far off was written before the clock was put back.
        is_due = Q(look_at__lte=now) | Q(look_at__gt=now + LONGEST_LOOK + LOOK)
        due = closed.filter(is_due).order_by("look_at")[:LIMITERS]
        done = sum([len(_let_in(using, limiter, known)) for limiter in due if _take_rate(using, limiter, now)])
        self._holds = closed.exists()
        ready = Job.objects.using(using).filter(CLAIMABLE, queue=queue).order_by(*ORDER)
        head = list(_rows(ready)[:WINDOW])
        if head and store.of(using).writes_at_once:
            self._start[spot] = POSITION(head[0])
        is_limited = any(row.limit_key or row.task in known.tasks for row in head) or (self._holds and not head)
        if queue not in known.queues and not is_limited:
            self._plain_until[spot] = time.monotonic() + LOOK
            return bool(done)
        self._plain_until[spot] = 0.0
        found = _sort(using, queue, head, 1, known, is_exact=False)
        if self._holds and (look_at := closed.filter(next_at__gt=now).aggregate(Min("look_at"))["look_at__min"]):
            found.opens_in = min(found.opens_in, max(SHORTEST_LOOK, look_at - now))
        if found.opens_in < inf:
            self._opens_at[spot] = time.monotonic() + found.opens_in
        done += _mark(using, found.unmarked, self.app or celery_app())
        if len(found.blocked) >= CROWD:
            done += _hold(using, queue, found.blocked)
            self._holds = True
        return bool(done)


def _take_anywhere(using: str, claim: Claim, known: Limits) -> list[Job]:
    """The claim in SQL for every database, in one transaction."""
    size, jobs, ready = claim.limit, Job.objects.using(using), store.of(using).ready(claim)
    # Without the write lock: most looks find nothing.
    if not ready.values_list("pk")[:1]:
        return []
    with store.of(using).claiming():
        if claim.order is not None:
            places = {pk: place for place, pk in enumerate(claim.order.pick(ready, FEW))}
            ready = ready.filter(pk__in=list(places))
        head = list(_rows(databases.free(ready))[: size + WINDOW])
        if claim.order is not None:
            head.sort(key=lambda row: places[row.pk])
        found = _sort(using, claim.queue, head, size, known)
        for key, (seen, last, following) in found.limiters.items():
            rows, moved = RateLimiter.objects.using(using), {"last_at": last, "next_at": following}
            same = rows.filter(pk=key, last_at=seen.last_at, next_at=seen.next_at) if seen is not None else None
            if not (rows.create(pk=key, **moved) if same is None else same.update(**moved)):
                raise IntegrityError("a claim of another queue passed the limiter first")
        for row, slot, queue_slot in found.picked:
            slots = {"limit_slot": slot, "queue_slot": queue_slot}
            jobs.filter(pk=row.pk).update(node=claim.node, token=claim.token, **{**store.of(using).running, **slots})
        return list(jobs.filter(pk__in=[row.pk for row, *_ in found.picked]).order_by(*ORDER))


def _rows(jobs: QuerySet[Job]) -> QuerySet[Job, Any]:
    return jobs.values_list("pk", "task", "limit_key", *ORDER, named=True)


def running_in(using: str, keys: Iterable[str]) -> dict[str, set[int]]:
    """The slots of each limit that are taken."""
    found: dict[str, set[int]] = defaultdict(set)
    rows = Job.objects.using(using).filter(WITH_SLOT, limit_key__in=list(keys))
    for job in rows.only("limit_key", "limit_slot"):
        found[str(job.limit_key)].add(job.limit_slot or 0)
    return found


def _sort(using: str, queue: str, rows: Sequence[Any], size: int, known: Limits, is_exact: bool = True) -> Found:
    """Which of the first rows of a queue may run now. ``is_exact``: also look whether jobs before them are held."""
    found, own, of_queue = Found(), known.queues.get(queue, Limit()), name_of(queue)
    keys = {row.limit_key for row in rows if row.limit_key is not None and row.task in known.tasks}
    now, taken = databases.epoch(using), running_in(using, keys)
    limiters = RateLimiter.objects.using(using).in_bulk([*keys, of_queue])
    held_at = [key for key, limiter in limiters.items() if limiter.look_at is not None and is_exact]
    first_held = {key: _line(using, key, queue).filter(HELD).values_list(*ORDER).first() for key in held_at}
    free = _free_slots(using, queue, own)
    if (most := own.permits(limiters.get(of_queue), now)) < 1:
        found.opens_in = own.opens_in(limiters.get(of_queue), now)
    # If the queue itself is full, no job of it runs, and none is in another job's way.
    is_open = most >= 1 and free != []
    shut: set[str] = set()
    taken_now: set[str] = set()
    # The rates that move on: by one start at the most for the limit of a task.
    begun: dict[str, Limit] = {}
    for row in rows:
        limit, slot = known.tasks.get(row.task), None
        if limit is not None:
            key = row.limit_key
            if key is None:
                found.unmarked.append(row)
                continue
            slot = next((n for n in range(limit.slots or 0) if n not in taken[key]), None)
            is_full = limit.slots is not None and len(taken[key]) >= limit.slots
            opens_in = limit.opens_in(limiters.get(key), now)
            held = first_held.get(key)
            if key in taken_now:
                continue
            if key in shut or is_full or opens_in or (held is not None and held < POSITION(row)):
                # No job behind it in its line may run either: they keep their order.
                shut.add(key)
                if is_open:
                    found.blocked.append(row)
                if opens_in and not is_full:
                    found.opens_in = min(found.opens_in, opens_in)
                continue
        is_paced = limit is not None and bool(limit.pause)
        is_behind = found.picked and (is_paced or begun)
        if not is_open or len(found.picked) >= min(size, most) or is_behind or free == []:
            continue
        if limit is not None:
            taken_now.add(row.limit_key)
            if limit.pause:
                begun[row.limit_key] = limit
        found.picked.append((row, slot, free.pop(0) if free is not None else None))
    if own.pause and found.picked:
        begun[of_queue] = own
    for key, limit in begun.items():
        since = limit.since(limiters.get(key), now)
        found.limiters[key] = limiters.get(key), since, since + len(found.picked) * limit.pause
    return found


def _free_slots(using: str, queue: str, own: Limit) -> list[int] | None:
    if own.slots is None:
        return None
    rows = Job.objects.using(using).filter(SEATED, queue=queue)
    taken = set(rows.values_list("queue_slot", flat=True))
    return [slot for slot in range(own.slots) if slot not in taken][: max(0, own.slots - len(taken))]


def _line(using: str, key: str, queue: str) -> QuerySet[Job]:
    rows = Job.objects.using(using).filter(LINED, limit_key=key, queue=queue)
    return rows.order_by("limit_key", "queue", *ORDER)


def _hold(using: str, queue: str, blocked: Sequence[Any]) -> int:
    """Take the jobs that stand in the way out of the index that claims read."""
    ids = {row.pk for row in blocked}
    [(key, _)] = Counter(row.limit_key for row in blocked).most_common(1)
    ids.update(_line(using, key, queue).filter(CLAIMABLE).values_list("pk", flat=True)[:KIN])
    if store.of(using).writes_at_once:
        return limited.hold(using, list(ids))
    done = 0
    with transaction.atomic(using=using):
        rows = databases.free(Job.objects.using(using).filter(CLAIMABLE, pk__in=ids)).values_list("pk", "limit_key")
        for pk, key in sorted(rows, key=lambda row: str(row[1])):
            done += Job.objects.using(using).filter(CLAIMABLE, pk=pk).update(held=True)
            limiter, now = RateLimiter.objects.using(using).get_or_create(pk=key)[0], databases.epoch(using)
            limiter.look_at = max(now, min(limiter.next_at, now + 1))
            limiter.save(using=using, update_fields=["look_at"])
    return done


def _take_rate(using: str, limiter: RateLimiter, now: float) -> bool:
    """Of all processes that find a limiter due, one gets to look at it. If that process dies, it becomes due again."""
    mine = RateLimiter.objects.using(using).filter(pk=limiter.pk, look_at=limiter.look_at)
    limiter.look_at = now + LOOK
    return bool(mine.update(look_at=limiter.look_at))


def _let_in(using: str, limiter: RateLimiter, known: Limits) -> list[tuple[str, Any]]:
    """Let in the first jobs of the limiter's lines, as many as may run soon; returns the queue and place of each.

    Race: another process may hold jobs meanwhile, which changes ``look_at``. So it is only written if it is as read.
    """
    held = Job.objects.using(using).filter(LINED, HELD, limit_key=limiter.pk).order_by("limit_key", "queue")
    first = held.only("queue", "task").first()
    limit = known.tasks.get(first.task) if first is not None else None
    most, now = KIN, databases.epoch(using)
    look_at = now + LOOK
    if limit is not None and limit.slots is not None:
        most = limit.slots - len(running_in(using, [limiter.pk])[limiter.pk])
    if limit is not None and limit.pause:
        opens_in = limit.opens_in(limiter, now)
        closed = RateLimiter.objects.using(using).filter(look_at__isnull=False)[: LET_IN + 1].count()
        ahead = min(LET_IN // max(1, closed), int(AHEAD / limit.pause))
        soon = (limit.burst if opens_in <= 0 else 0) + (ahead if opens_in < AHEAD else 0)
        most = min(most, soon)
        # Look again when half of the jobs that may be let in ahead have begun.
        used_up = opens_in + soon * limit.pause
        look_at = now + min(max(SHORTEST_LOOK, used_up - ahead * limit.pause / 2), LONGEST_LOOK)
    done: list[tuple[str, Any]] = []
    places: list[Any] = []
    while first is not None and most > 0:
        # The workers of one queue may not consume another: each queue has a line of its own.
        line = limited.behind(_line(using, limiter.pk, first.queue), limiter)
        ids = [pk for pk, is_held in line.values_list("pk", "held")[:most] if is_held]
        # By their keys, or the planner would use the index of all held jobs. The states name the partition.
        own = Job.objects.using(using).filter(pk__in=ids, state__in=WAITING)

        def let_in(own: QuerySet[Job] = own) -> list[Any]:
            rows = databases.free(own).only("state", "held", *ORDER)
            free = [job for job in rows if job.held and job.state == "ready"]
            own.filter(pk__in=[job.pk for job in free]).update(held=None)
            return [POSITION(job) for job in free]

        done += [(first.queue, place) for place in databases.again_if_moved(using, let_in)]
        places += line.filter(HELD).values_list(*ORDER)[:1]
        first = held.filter(queue__gt=first.queue).only("queue", "task").first()
    values: dict[str, Any] = {"look_at": look_at}
    if most > 0 and store.of(using).writes_at_once:
        values |= dict(zip(limited.PLACE, min(places, default=(None, None, None)), strict=True))
    # Jobs just let in may stand before the position from which other claims go on: so look once more.
    if most > 0 and not done and not held.exists():
        values["look_at"] = None
    RateLimiter.objects.using(using).filter(pk=limiter.pk, look_at=limiter.look_at).update(**values)
    return done


def _mark(using: str, rows: Sequence[Any], app: Any) -> int:
    """Give jobs that were called by name, or before their task had a limit, the key that a call would give them now."""
    done = 0
    for job in Job.objects.using(using).filter(pk__in=[row.pk for row in rows]).only("task", "args", "kwargs"):
        try:
            limits.mark(app.tasks[job.task], job)
        except Exception:
            # The arguments do not fit the task (its run will report that), or the task is not known here.
            job.limit_key = job.task

        def write(job: Job = job) -> int:
            mine = Job.objects.using(using).filter(pk=job.pk)
            is_free = databases.free(mine.filter(state=State.READY)).values_list("pk").first()
            return mine.filter(state__in=WAITING).update(limit_key=job.limit_key) if is_free else 0

        done += databases.again_if_moved(using, write)
    return done


#: The worker state takes one writer at a time. Two threads of the supervisor write.
_publishing = threading.Lock()


def publish() -> None:
    """Tell this worker's processes the limits set by hand; the supervisor calls this with every poll."""
    with _publishing:
        given = {name: list(values) for name, values in limits.read().items()}
        if given == worker_state.limits:
            return
        try:
            worker_state.limits = given
        except ValueError as exc:
            logger.error("the limits that were set by hand: %s", exc, extra={"action": "limits_too_many"})
            return
    databases.everywhere(_look_now)


def ticked(answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Tell this worker's processes whether jobs are held back, and the limits set by hand."""
    worker_state.holds = any(each["holds"] for each in answers.values())
    if any(each["may_open"] or each["is_far"] for each in answers.values()):
        wakeup.send()
    if worker_state.limits or answers.get(databases.home(), {}).get("is_limited"):
        publish()


def _look_now(using: str) -> None:
    """Let workers look at held jobs at once: the limits changed, and jobs may start before the time of the old rate."""
    now = databases.epoch(using)
    RateLimiter.objects.using(using).filter(look_at__gt=now).update(look_at=now)


def prune_rate_limiters(using: str) -> int:
    """Delete the open limiters at which no job is held: the next job makes a new one.

    Race: a job is held at this moment. If a signal has receivers, ``delete()`` would delete by an earlier read.
    """
    rows = RateLimiter.objects.using(using).filter(next_at__lt=databases.epoch(using) - 60, look_at=None)
    return int(rows._raw_delete(using))
