"""What is known about a job and the world around it, each looked up when a reason asks for it, and once."""

from __future__ import annotations

import datetime
import logging
import uuid
from functools import cached_property
from typing import Any

from django.db.models import Q, Subquery
from django.db.models.functions import Now

from jobs import databases, instance, lockstores, unique
from jobs.census import MOST, Worker, in_line, workers
from jobs.effects import with_makers
from jobs.models import Cancellation, Effect, Job, Marker, Node, Pause, State
from jobs.project import celery_app
from jobs.selection import find
from jobs.times import duration

logger = logging.getLogger("jobs")

#: Rows that are shown of what a job may have any number of.
SHOWN = 20


class View:
    def __init__(self, job: Job, now: datetime.datetime) -> None:
        self.job = job
        self.using = str(job._state.db)
        #: The database's clock.
        self.now = now

    @cached_property
    def error(self) -> dict[str, Any] | None:
        """The last error in its full shape, whatever the row holds."""
        error = self.job.error
        if error is None:
            return None
        blank = {"type": "?", "message": "", "at": "", "attempt": None}
        found = {**blank, **(error if isinstance(error, dict) else {"message": error})}
        return {**found, "type": str(found["type"]), "message": str(found["message"])}

    # Times, as a reader sees them

    def since(self, moment: datetime.datetime | None) -> float:
        """Seconds; negative for what is to come."""
        return 0.0 if moment is None else (self.now - moment).total_seconds()

    def ago(self, moment: datetime.datetime | None) -> str:
        return duration(max(0.0, self.since(moment)))

    def until(self, moment: datetime.datetime | None) -> str:
        return duration(max(0.0, -self.since(moment)))

    # The world

    @cached_property
    def workers(self) -> list[Worker]:
        """Those that nobody declared dead, the silent ones among them."""
        return workers(Node.objects.using(databases.home()).filter(dead_at=None))

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive]

    @property
    def consumers(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.takes_jobs and self.job.queue in worker.node.queues]

    @cached_property
    def own_worker(self) -> Worker | None:
        """The one that runs the job, or ran it last."""
        return next(iter(workers(Node.objects.using(self.using).filter(jobs=self.job))), None)

    @cached_property
    def pause(self) -> Pause | None:
        return Pause.objects.using(self.using).filter(pk=self.job.queue).first()

    @cached_property
    def marks(self) -> dict[str, Any]:
        return dict(instance.marks(self.using))

    @cached_property
    def cancellation(self) -> Cancellation | None:
        return Cancellation.objects.using(self.using).filter(pk=self.job.pk).first()

    @cached_property
    def app(self) -> Any:
        return celery_app()

    @cached_property
    def task(self) -> Any:
        """The task as this process knows it, or None."""
        if self.app is None:
            return None
        try:
            self.app.loader.import_default_modules()
        except Exception:
            # A process that cannot import all of them (a web server without a worker's libraries) says what it can.
            logger.debug("not all tasks can be imported here", exc_info=True, extra={"action": "tasks_unknown"})
        return self.app.tasks.get(self.job.task)

    @cached_property
    def processes(self) -> int:
        """How many the workers have that consume the job's queue."""
        return sum(worker.node.concurrency or 0 for worker in self.consumers)

    @cached_property
    def running(self) -> int:
        """How many jobs these workers run, of whatever queue."""
        nodes = [worker.node.pk for worker in self.consumers]
        return Job.objects.using(self.using).filter(state=State.RUNNING, node__in=nodes).count()

    @cached_property
    def ahead(self) -> int:
        """How many ready jobs of its queue are claimed before this one; nobody counts beyond ``census.MOST``."""
        job = self.job
        rows = Job.objects.using(self.using)
        # As the database has it: SQLite compares texts, and Django would write another one.
        run_at = Subquery(rows.filter(pk=job.pk).values("run_at"))
        ready = in_line(self.using).filter(queue=job.queue)
        # One by one, each is a stretch of the index; in one condition they would read all of the queue.
        parts = (
            ready.filter(rank__lt=job.rank),
            ready.filter(rank=job.rank, run_at__lt=run_at),
            ready.filter(rank=job.rank, run_at=run_at, pk__lt=job.pk),
        )
        return min(MOST, sum(part[:MOST].count() for part in parts))

    @cached_property
    def lock(self) -> tuple[str, lockstores.Held | None] | None:
        """The lock that the task takes (``lock=``), and who holds it now."""
        template = getattr(self.task, "key_templates", {}).get("lock")
        if template is None:
            return None
        try:
            key = template.of(self.job.args, self.job.kwargs)
            return key, lockstores.look(key)
        except Exception:
            # The key is made by the project's code, perhaps of arguments that are older than it.
            logger.debug("the lock of a job is not known here", exc_info=True, extra={"action": "lock_unknown"})
            return None

    @property
    def held_lock(self) -> tuple[str, lockstores.Held] | None:
        """The same, if another job holds it."""
        key, held = self.lock or ("", None)
        return (key, held) if held is not None and held.job != self.job.pk else None

    @cached_property
    def markers(self) -> list[Marker]:
        """Those that the job left, and the one that it would leave."""
        own = Q(job=self.job.pk)
        if self.job.marker_key is not None:
            own |= Q(key=self.job.marker_key, kind=Marker.Kind.TASK)
        return list(Marker.objects.using(self.using).filter(own).order_by("pk")[:SHOWN])

    @cached_property
    def effects(self) -> list[Effect]:
        """The external calls that no other job made after this one."""
        rows = with_makers(Effect.objects.using(self.using).filter(job=self.job.pk))
        return list(rows.order_by("pk")[:SHOWN])

    @cached_property
    def children(self) -> list[Job]:
        """The first ones that its body called."""
        rows = Job.objects.using(self.using).filter(parent_id=self.job.pk).exclude(pk=self.job.pk)
        return list(rows.only("id", "task", "state").order_by("pk")[:SHOWN])

    @cached_property
    def key_holder(self) -> Job | None:
        """The job that has the unique key of this one."""
        return unique.holder_of(self.job)

    @cached_property
    def call(self) -> Effect | None:
        """The external call that the run makes at the moment."""
        rows = Effect.objects.using(self.using).filter(
            job=self.job.pk, lease=self.job.lease, state=Effect.State.SENDING
        )
        return rows.first()


def look(key: uuid.UUID) -> View | None:
    job = find(key, read_at=Now())
    return None if job is None else View(job, job.read_at)
