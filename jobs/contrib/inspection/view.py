"""What is known about a job and its surroundings, the reasons that follow from it, and other things with ids."""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Model, QuerySet, Subquery
from django.db.models.functions import Now

from jobs import extensions
from jobs.conf import conf, loaded_app
from jobs.conf.logs import logger
from jobs.contrib.inspection.counts import MOST, workers
from jobs.contrib.inspection.times import duration
from jobs.contrib.locks import locks
from jobs.contrib.redaction.display import shown
from jobs.models import Job, Node, Pause, State
from jobs.models.values import scrub
from jobs.store import databases

#: The columns that count the runs that did not complete.
COUNTS = ("retries", "crashes", "node_losses", "snoozes")

SHOWN = 20  #: How many rows are shown where a job may have many.


class Reason:
    """Why a job waits, or how it ended: a code for scripts, and one sentence in the reader's language.

    ``cure`` is what to do about it, if anything can be done; ``evidence`` is what it was concluded from, kept as JSON.
    The sentence may use all of the evidence, and ``words``, which are texts for people.
    """

    #: The permission that a reader needs in the admin, in addition to reading jobs.
    permission = ""
    #: For extensions: whether it comes before the last reason of the job's state (that it runs, or failed), or behind.
    is_cause = False

    def __init__(self, code: str, says: str, cure: str = "", words: Any = None, **evidence: Any) -> None:
        self.code, self.says, self.cure = code, says % {**evidence, **(words or {})}, cure
        self.evidence = {name: _plain(value) for name, value in evidence.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else value


def database_of(model: type[Model]) -> str:
    """The database whose rows the admin shows and changes: where the routers read them, unless that is a replica."""
    alias = router.db_for_read(model)
    return alias if alias in conf().DATABASES else databases.job_alias()


def look_up(key: uuid.UUID) -> View | None:
    """The job with this id; None: there is none."""
    job = databases.first(Job.objects.annotate(read_at=Now()).filter(pk=key))
    return None if job is None else View(job)


class View:
    """A job and its surroundings: each part is looked up once, when it is needed."""

    def __init__(self, job: Any) -> None:
        self.job: Job = job
        self.using = str(job._state.db)
        self.now: datetime.datetime = job.read_at  #: The database's clock.
        self.seen = shown(job)

    @cached_property
    def error(self) -> dict[str, Any] | None:
        """The last error as a complete dict, whatever the row holds."""
        if (error := self.seen.error(self.job.error)) is None:
            return None
        found = {"type": "?", "message": "", "at": "", "attempt": None}
        found |= error if isinstance(error, dict) else {"message": error}
        return {**found, "type": str(found["type"]), "message": scrub(str(found["message"]), 4000)}

    def since(self, moment: datetime.datetime | None) -> float:
        """The seconds since a moment; negative if it is still to come."""
        return 0.0 if moment is None else (self.now - moment).total_seconds()

    def ago(self, moment: datetime.datetime | None) -> str:
        return duration(max(0.0, self.since(moment)))

    @property
    def is_due(self) -> bool:
        return self.job.state == State.READY or self.job.run_at <= self.now

    def ahead_of(self, ready: QuerySet[Job]) -> int:
        """How many of these jobs have their turn before this one; the count ends at ``counts.MOST``."""
        job, equal = self.job, ready.filter(rank=self.job.rank)
        # Read in the database: SQLite compares texts, and Django would write the time as a different text.
        run_at = Subquery(Job.objects.using(self.using).filter(pk=job.pk).values("run_at")[:1])
        # Each condition alone reads a range of the index; all in one query would read the whole queue.
        parts = (
            ready.filter(rank__lt=job.rank),
            equal.filter(run_at__lt=run_at),
            equal.filter(run_at=run_at, pk__lt=job.pk),
        )
        return min(MOST, sum(part[:MOST].count() for part in parts))

    # Around the job

    @cached_property
    def workers(self) -> list[Any]:
        """The workers that are not declared dead (silent ones too), with the tasks that they know."""
        return workers(Node.objects.using(databases.home()).filter(dead_at=None))

    @property
    def consumers(self) -> list[Any]:
        return [worker for worker in self.workers if worker.takes_jobs and self.job.queue in worker.queues]

    @cached_property
    def own_worker(self) -> Any:
        """The worker that runs the job, or ran it last."""
        return next(iter(workers(Node.objects.using(self.using).filter(jobs=self.job))), None)

    @cached_property
    def pause(self) -> Pause | None:
        return Pause.objects.using(self.using).filter(pk=self.job.queue).first()

    @cached_property
    def tasks(self) -> Mapping[str, Any]:
        return getattr(loaded_app(), "tasks", {})

    @property
    def task(self) -> Any:
        return self.tasks.get(self.job.task)

    @cached_property
    def lock(self) -> tuple[str, locks.Held | None] | None:
        """The lock that the task takes (``lock=``), and who holds it now."""
        template = getattr(self.task, "key_templates", {}).get("lock")
        if template is None:
            return None
        try:
            key = template.of(self.job.args, self.job.kwargs)
            return self.seen.text("key", key), locks.look(key)
        except Exception:
            # The project's code makes the key, perhaps from arguments that are older than the code.
            logger.debug("the lock of a job is not known here", exc_info=True, extra={"action": "lock_unknown"})
            return None


class Other(NamedTuple):
    """A row of an extension with an id like a job's (``Extension.other``)."""

    row: Any
    #: Its page: the label of a link, the name of the URL, and its values.
    page: tuple[Any, ...]
    #: Its progress, as ``contrib/progress`` shows it for a job; and why it has not ended. None: it has no end.
    shown: Callable[[], dict[str, Any]] | None = None
    reasons: Callable[[], Iterable[Any]] | None = None


def other(what: Any, part: str) -> Other | None:
    """The extension's row of this id, if it has that part."""
    found = (look(what) for look in extensions.through("other"))
    return next((each for each in found if each is not None and getattr(each, part) is not None), None)


def errors_of(job: Job) -> list[Any]:
    """The kept errors of its failed attempts: dicts, unless a person, or another program, wrote the row."""
    return job.errors if isinstance(job.errors, list) else [job.errors]


def progress_of(jobs: Iterable[Job], is_veiled: bool = True) -> dict[uuid.UUID, Any]:
    """The progress that the last run of each job has reported, as people may see it."""
    found: dict[uuid.UUID, Any] = {}
    for progress in extensions.through("progress"):
        found |= (progress.of if is_veiled else progress.as_said)(jobs)
    return found
