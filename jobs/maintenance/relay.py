"""Publish what is due, and what was published and never started."""

from __future__ import annotations

import datetime
import logging
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

from celery import current_app
from django.db.models import Max, Q, QuerySet

from jobs import databases, lifecycle, publisher
from jobs.conf import conf
from jobs.models import Job, Node, State

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("jobs")

#: How many suspects one look takes from the queues that it has not yet cleared of suspicion, and how many
#: messages one dead node can have taken with it.
SUSPECTS, HELD_BY_A_NODE = 2000, 100

#: So many graces is a job overtaken by far.
FAR = 10

#: The grace of a job doubles with every copy, so often at the most.
MOST_DOUBLINGS = 10

#: Seconds after which each part of a tick (expiring, publishing, publishing again) gives way to the next.
LONGEST_TICK = 5.0


class Relay:
    def __init__(self, app: Celery | None = None) -> None:
        self.app = app or current_app._get_current_object()
        self._suspects = {alias: Suspects(self.app, alias) for alias in conf().DATABASES}
        self._next_look = 0.0
        #: Why nothing can be published, as far as the last look knows.
        self.trouble: str | None = None

    def run_once(self) -> dict[str, int]:
        """Expire, publish what is due, and from time to time look for lost messages."""
        done = {"expired": 0, "published": 0, "republished": 0}
        self.trouble = None
        look = time.monotonic() >= self._next_look or any(each.is_behind for each in self._suspects.values())
        if look:
            self._next_look = time.monotonic() + conf().GRACE / 4
        for alias in conf().DATABASES:
            databases.guarded(alias, partial(self._run, alias, look, done))
        return done

    def _run(self, using: str, look: bool, done: dict[str, int]) -> None:
        deadline = time.monotonic() + LONGEST_TICK
        while expired := lifecycle.expire(using, conf().BATCH):
            done["expired"] += expired
            if time.monotonic() > deadline:
                break
        lifecycle.sweep_cancellations(using, conf().BATCH)
        done["published"] += self._publish_due(using)
        if look:
            done["republished"] += self._suspects[using].publish_again()

    def _publish_due(self, using: str) -> int:
        """Publish batch after batch until nothing is due, the broker takes no more, or the tick has lasted enough."""
        published = locked = 0
        deadline = time.monotonic() + LONGEST_TICK
        while time.monotonic() < deadline and (ids := lifecycle.due(using, conf().BATCH, locked)):
            if (trouble := publisher.trouble(self.app)) is not None:
                self.trouble = trouble
                break
            jobs = lifecycle.dispatch(ids, using)
            left = publisher.publish(jobs, using, self.app, patient=True)
            lifecycle.undispatch([job.pk for job in left], using)
            published += len(jobs) - len(left)
            # Some stay at the head of the line for as long as another session holds them: the others must not wait.
            # (What another relay took is counted as well; the next tick begins at the head again.)
            locked += len(ids) - len(jobs)
            if left:
                self.trouble = f"the broker took {len(jobs) - len(left)} of {len(jobs)} messages"
                break
        if published:
            logger.info("relay handled %s due jobs", published, extra={"action": "relayed", "count": published})
        return published


class Suspects:
    """Jobs that were published, whose message may be gone.

    A fixed grace alone would flood the broker with copies under a long backlog. So a job older than its
    grace is published again only if one of these says that its message cannot be in the queue any more:

    * the broker's queue is empty;
    * a job published later into the same queue, with the same priority, was running a grace ago;
    * one of another priority was, that was published later by far: the queue moves, and nothing says which comes first
      (few in each look, because it may only be the least of all);
    * a node that consumed the queue died since (it may have held the message), up to a bound per node.
    """

    def __init__(self, app: Celery, using: str) -> None:
        self.app = app
        self.using = using
        #: Per (queue, priority): the latest ``dispatched_at`` seen running, and the same a grace ago.
        self._overtaken: dict[tuple[str, int | None], datetime.datetime] = {}
        self._running: dict[tuple[str, int | None], datetime.datetime] = {}
        self._rotated = time.monotonic()
        self._deaths: dict[uuid.UUID, _Death] = {}
        #: Queues that were seen empty: what was published into them until then is lost, were it a million.
        self._emptied: dict[str, datetime.datetime] = {}

    def publish_again(self) -> int:
        self._watch_running()
        if not self._old([]).exists():
            self._emptied.clear()
            return 0
        if not publisher.is_up(self.app):
            return 0
        lost = self._find_lost()
        if not lost and not self._emptied:
            return 0
        # The broker may have lost its queues and bindings with the messages: declare them again.
        publisher.forget_connections()
        done = 0
        if lost:
            done, _ = self._publish(
                [job.pk for job in lost], max(job.dispatched_at for job in lost if job.dispatched_at)
            )
        deadline = time.monotonic() + LONGEST_TICK
        for queue, until in list(self._emptied.items()):
            rows = self._old([]).filter(lifecycle.published_by(until), queue=queue).values_list("pk", flat=True)
            locked = 0
            while ids := list(rows[locked : locked + conf().BATCH]):
                published, left = self._publish(ids, until)
                done += published
                locked += len(ids) - published - left
                if left or time.monotonic() > deadline:
                    break
            else:
                # Race: what another relay took meanwhile was counted as locked, and others passed over in its place.
                if not locked:
                    del self._emptied[queue]
        if done:
            text = "relay published %s jobs again: their messages seem lost"
            logger.warning(text, done, extra={"action": "republished", "count": done})
        return done

    @property
    def is_behind(self) -> bool:
        """Whether more is known to be lost than one tick could publish."""
        return bool(self._emptied)

    def _publish(self, ids: list[uuid.UUID], until: datetime.datetime) -> tuple[int, int]:
        """How many were published, and how many the broker did not take; the others are somebody else's by now."""
        jobs = lifecycle.dispatch_again(ids, until, self.using)
        left = publisher.publish(jobs, self.using, self.app, patient=True)
        lifecycle.undispatch([job.pk for job in left], self.using)
        return len(jobs) - len(left), len(left)

    def _find_lost(self) -> list[Job]:
        lost: list[Job] = []
        cleared: list[str] = list(self._emptied)
        # A long backlog of one queue must not hide what the others lost.
        while suspects := list(self._old(cleared).only("queue", "priority", "dispatched_at")[:SUSPECTS]):
            lost += self._lost(suspects)
            if len(suspects) < SUSPECTS:
                break
            cleared += {job.queue for job in suspects}
        return [job for job in lost if job.queue not in self._emptied]

    def _watch_running(self) -> None:
        # One with several messages out may have been claimed by the oldest, and overtook nobody.
        rows = Job.objects.using(self.using).filter(state=State.RUNNING, dispatched_at__isnull=False, republished=0)
        for queue, priority, latest in rows.values_list("queue", "priority").annotate(Max("dispatched_at")):
            key = (queue, priority)
            self._running[key] = max(latest, self._running.get(key, latest))
        if time.monotonic() - self._rotated > conf().GRACE:
            self._overtaken, self._running = self._running, {}
            self._rotated = time.monotonic()

    def _old(self, cleared: list[str]) -> QuerySet[Job]:
        """Published and older than their grace, which doubles with every copy; oldest first."""
        grace = conf().GRACE
        doubled = Q(republished__gt=MOST_DOUBLINGS, dispatched_at__lt=lifecycle.now_plus(-grace * 2**MOST_DOUBLINGS))
        for copies in range(MOST_DOUBLINGS + 1):
            doubled |= Q(republished=copies, dispatched_at__lt=lifecycle.now_plus(-grace * 2**copies))
        rows = Job.objects.using(self.using).filter(
            doubled, state=State.READY, dispatched_at__lt=lifecycle.now_plus(-grace)
        )
        return rows.filter(~lifecycle.is_paused(self.using)).exclude(queue__in=cleared).order_by("dispatched_at")

    def _lost(self, old: list[Job]) -> list[Job]:
        deaths = self._died(old[0])
        depth: dict[str, int | None] = {}
        lost = []
        by_far = False
        for job in old:
            assert job.dispatched_at is not None
            if job.queue not in depth:
                depth[job.queue] = publisher.depth(self.app, job.queue)
                if depth[job.queue] == 0:
                    latest = self._old([]).filter(queue=job.queue).aggregate(Max("dispatched_at"))
                    self._emptied[job.queue] = latest["dispatched_at__max"] or job.dispatched_at
            overtaken = self._overtaken.get((job.queue, job.priority))
            if overtaken is not None and job.dispatched_at < overtaken:
                lost.append(job)
                continue
            if not by_far and any(
                queue == job.queue and job.dispatched_at < latest - FAR * datetime.timedelta(seconds=conf().GRACE)
                for (queue, _), latest in self._overtaken.items()
            ):
                by_far = True
                lost.append(job)
                continue
            for death in deaths:
                if death.left and job.queue in death.queues and job.dispatched_at < death.at:
                    death.left -= 1
                    lost.append(job)
                    break
        return lost

    def _died(self, oldest: Job) -> list[_Death]:
        nodes = Node.objects.using(self.using).filter(dead_at__gt=oldest.dispatched_at)
        return [
            self._deaths.setdefault(node.pk, _Death(set(node.queues), node.dead_at)) for node in nodes if node.dead_at
        ]


class _Death:
    def __init__(self, queues: set[str], at: datetime.datetime) -> None:
        self.queues = queues
        self.at = at
        self.left = HELD_BY_A_NODE
