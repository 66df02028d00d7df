"""The state machine: every transition of a job, each one conditional statement.

Each function names the race that its condition decides. Out of ``running`` there is one door,
:func:`_settle`, fenced by the claim (lease and token). Nobody else writes ``Job.state``.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils import timezone

from jobs import databases, unique
from jobs.arguments import scrub
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.models import ENDED, Cancellation, Job, Node, Pause, State
from jobs.reports import report_cancelled
from jobs.statements import Slot, Update

#: What is counted, each apart.
COUNTS = ("retries", "crashes", "node_losses", "snoozes")

#: How many errors a job keeps: as many of the first, and as many of the last.
KEPT_ERRORS = 20


def now_plus(seconds: float) -> Any:
    """An expression: the database's clock, ``seconds`` from now."""
    return Now() + datetime.timedelta(seconds=seconds)


def error_entry(kind: str, message: str, traceback: str = "", attempt: int = 0) -> dict[str, Any]:
    """One entry of ``Job.error`` and ``Job.errors``; the text is scrubbed of what a database refuses."""
    return {
        "type": scrub(kind, 200),
        "message": scrub(message, 4000),
        "traceback": scrub(traceback),
        "at": timezone.now().astimezone(datetime.UTC).isoformat(),
        "attempt": attempt,
    }


def _with(errors: Any, entry: dict[str, Any]) -> list[Any]:
    # Somebody may have edited the row by hand.
    kept = [*(errors if isinstance(errors, list) else ()), entry]
    return kept if len(kept) <= 2 * KEPT_ERRORS else kept[:KEPT_ERRORS] + kept[-KEPT_ERRORS:]


# Into running


def claim(job_id: uuid.UUID, node_id: uuid.UUID, using: str) -> Job | None:
    """Move the job to ``running`` for this node, with a fresh token and the next lease.

    Race: of any number of copies of a message, one finds the row ``ready``. A node that was declared
    dead claims nothing. An expired row is not claimed, and no row of a paused queue.

    Returns:
        The row as it was claimed, or None: somebody else has it, or it is not due, or it ended.
    """
    connection = connections[using]
    values = {"id": job_id, "node": node_id, "token": uuid.uuid4(), "backend": _backend(connection)}
    if connection.vendor in ("postgresql", "sqlite"):
        job: Job | None = _CLAIM.returning(using, **values)
        return job
    with transaction.atomic(using=using):
        return Job.objects.using(using).get(pk=job_id) if _CLAIM.execute(using, **values) else None


def _claimable(using: str) -> tuple[QuerySet[Job], dict[str, Any]]:
    rows = Job.objects.using(using).filter(
        Q(expires_at=None) | Q(expires_at__gt=Now()),
        Exists(Node.objects.using(using).filter(pk=Slot(Job, "node"), dead_at=None)),
        ~is_paused(using),
        pk=Slot(Job, "id"),
        state=State.READY,
    )
    pid: Any = Slot(Job, "backend")
    if connections[using].vendor == "postgresql":
        # A pooler tells its clients another number than the server does: none then, because the process would be
        # anybody's by the time somebody ends it.
        pid = RawSQL("CASE WHEN pg_backend_pid() = %s THEN pg_backend_pid() END", [pid])
    return rows, {
        "state": State.RUNNING,
        "lease": F("lease") + 1,
        "token": Slot(Job, "token"),
        "backend": pid,
        "node": Slot(Job, "node"),
        "started_at": Now(),
    }


_CLAIM = Update(_claimable)


def _backend(connection: Any) -> int | None:
    """The server's process that this connection was told of at its beginning; the body will use it as well."""
    if connection.vendor != "postgresql":
        return None
    connection.ensure_connection()
    return int(connection.connection.info.backend_pid)


# Out of running: the one door


def _settle(job: Job, **values: Any) -> bool:
    """Race: this run may be a zombie, whose job was given to another. Then no row matches: False."""
    if _owned(job).update(**values) != 1:
        return False
    _follow(job, **values)
    return True


def _follow(job: Job, **values: Any) -> None:
    for name, value in values.items():
        setattr(job, name, value)
    job.forget_computed()


def _owned(job: Job) -> QuerySet[Job]:
    return Job.objects.using(job._state.db).filter(pk=job.pk, state=State.RUNNING, lease=job.lease, token=job.token)


def succeed(job: Job, result: Any) -> bool:
    """The last statement of the body's own transaction, so that effects and completion are one commit.

    False as well if the run was asked to end: see :func:`heed`.
    """
    assert job._state.db is not None
    values = {"id": job.pk, "lease": job.lease, "token": job.token, "result": result}
    if not _SUCCEED.execute(job._state.db, **values):
        return False
    _follow(job, state=State.SUCCEEDED, finished_at=Now(), result=result, error=None)
    return True


def succeed_like(job: Job, source: Job) -> bool:
    """As :func:`succeed`, for a run that found its work done: with the result of the job that did it."""
    noted = Cancellation.objects.using(job._state.db).filter(pk=job.pk)
    values = {"state": State.SUCCEEDED, "finished_at": Now(), "error": None}
    values |= {"result": source.result, "replay_of": source.pk}
    if _owned(job).filter(~Exists(noted)).update(**values) != 1:
        return False
    _follow(job, **values)
    return True


def _unbroken(using: str) -> tuple[QuerySet[Job], dict[str, Any]]:
    noted = Cancellation.objects.using(using).filter(pk=OuterRef("pk"))
    owned = Job.objects.using(using).filter(
        ~Exists(noted),
        pk=Slot(Job, "id"),
        state=State.RUNNING,
        lease=Slot(Job, "lease"),
        token=Slot(Job, "token"),
    )
    return owned, {"state": State.SUCCEEDED, "finished_at": Now(), "result": Slot(Job, "result"), "error": None}


_SUCCEED = Update(_unbroken)


def fail(job: Job, error: dict[str, Any], **counts: Any) -> bool:
    return _settle(job, state=State.FAILED, finished_at=Now(), error=error, errors=_with(job.errors, error), **counts)


def cancel_running(job: Job, error: dict[str, Any]) -> bool:
    """The run itself asked for it (Celery's ``Ignore``)."""
    return _settle(job, state=State.CANCELLED, finished_at=Now(), error=error)


def retry(job: Job, run_at: Any, error: dict[str, Any], changes: dict[str, Any]) -> bool:
    """Back to wait for ``run_at``; ``changes`` are the columns that ``Task.retry()`` was given anew."""
    values = {**changes, "retries": F("retries") + 1, "error": error, "errors": _with(job.errors, error)}
    return _wait(job, run_at, **values)


def hand_back(job: Job, delay: float) -> bool:
    """The job gave up its run without fault of its own; it counts nowhere."""
    return _wait(job, now_plus(delay) if delay > 0 else None)


def snooze(job: Job, seconds: float, entry: dict[str, Any], limit: int) -> bool:
    """The body, or what it needs, asked for another time; it uses no attempt. Too often ends ``failed``."""
    counted = {"snoozes": F("snoozes") + 1}
    if job.snoozes + 1 >= limit:
        return heed(job) or fail(job, entry, **counted)
    return _wait(job, now_plus(seconds), **counted, error=entry)


def lose(job: Job, error: dict[str, Any], limit: int) -> bool:
    """The run is gone with its node or its database. Not the body's fault: its own count, its own cap."""
    return _give_back(job, "node_losses", error, limit)


def crash(job: Job, error: dict[str, Any], limit: int) -> bool:
    """The process died in exactly this body. A job that keeps doing that ends ``failed``."""
    return _give_back(job, "crashes", error, limit)


def _give_back(job: Job, count: str, error: dict[str, Any], limit: int) -> bool:
    times = getattr(job, count)
    counted = {count: F(count) + 1}
    if times + 1 >= limit:
        return heed(job) or fail(job, error, **counted)
    return _wait(job, _backoff(times), **counted, error=error, errors=_with(job.errors, error))


def _wait(job: Job, run_at: Any, **values: Any) -> bool:
    """Out of running, to wait again; a run that was asked to end does not come back."""
    if heed(job):
        return True
    values |= _waiting(run_at)
    if job.unique_key is None or job.unique_until == "finished":
        return _settle(job, **values)
    if job.unique_expires_at is not None:
        values["unique_key"] = _unexpired_key()
    try:
        with databases.bounded(str(job._state.db), conf().UNIQUE_WAIT):
            return _settle(job, **values)
    except IntegrityError:
        # Race: since this run began, another job took the key. Two may not wait, and the other one does the work.
        error = error_entry("UniqueTaken", unique.describe(job), attempt=job.lease)
        counted = {name: value for name, value in values.items() if name in COUNTS}
        return _settle(
            job,
            state=State.FAILED,
            finished_at=Now(),
            error=error,
            errors=_with(values.get("errors", job.errors), error),
            **counted,
        )
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        # Somebody may take the key, and does not come to an end. Better two that wait than a retry that is forgotten.
        return _settle(job, **{**values, "unique_key": None})


def _unexpired_key() -> Case:
    return Case(When(unique_expires_at__lte=Now(), then=None), default=F("unique_key"))


def _backoff(times: int) -> Any:
    """None (at once) for the first time, then 1, 2, 4 ... 60 seconds."""
    return now_plus(min(60.0, 2.0 ** (times - 1))) if times else None


def _waiting(run_at: Any) -> dict[str, Any]:
    """The columns of a job that waits: for its time, or (None) only for a message."""
    return {
        "state": State.READY if run_at is None else State.SCHEDULED,
        "run_at": Now() if run_at is None else run_at,
        "dispatched_at": None,
        "republished": 0,
        # Else rescue might end the server process of an earlier claim, after one by a release that does not set it.
        "backend": None,
    }


# A running job is asked to end


def ask_to_end(job_id: uuid.UUID, using: str, kind: str = "Cancelled", why: str = "cancelled by hand") -> bool:
    """Leave a note for a running job, which its run heeds at its next checkpoint or at its end.

    Race: the run may end at this moment, or go back to wait. The relay finds the note then, and the job is
    cancelled before it is published: :func:`sweep_cancellations`.
    """
    if not Job.objects.using(using).filter(pk=job_id, state=State.RUNNING).exists():
        return False
    note = Cancellation(job=job_id, kind=kind, reason=scrub(why, 4000))
    Cancellation.objects.using(using).bulk_create([note], ignore_conflicts=True)
    return True


def asked_to_end(job: Job) -> Cancellation | None:
    return Cancellation.objects.using(job._state.db).filter(pk=job.pk).first()


def heed(job: Job) -> bool:
    """End the run that was asked to; False: it was not, or it is not the owner any more."""
    note = asked_to_end(job)
    if note is None:
        return False
    done = cancel_running(job, error_entry(note.kind, note.reason, attempt=job.lease))
    if done:
        note.delete(using=job._state.db)
    return done


def owns(job: Job) -> bool:
    """Whether this run still owns the job."""
    return _owned(job).exists()


def hold(job: Job) -> bool:
    """Whether this run owns the job. Then it does until the end of the transaction: nobody rescues it meanwhile."""
    return bool(_owned(job).select_for_update().values_list("pk"))


def sweep_cancellations(using: str, limit: int) -> int:
    """Cancel jobs that were asked to end and wait again, and drop the notes of those that ended."""
    done = 0
    running = Job.objects.using(using).filter(pk=OuterRef("job"), state=State.RUNNING)
    for note in Cancellation.objects.using(using).filter(~Exists(running)).order_by("at")[:limit]:
        job = Job.objects.using(using).filter(pk=note.pk)
        waiting = job.filter(state__in=(State.SCHEDULED, State.READY))
        with transaction.atomic(using=using):
            cancelled = databases.free(waiting).exists() and cancel(note.pk, using, note.kind, note.reason)
            if cancelled or not job.exclude(state__in=ENDED).exists():
                note.delete(using=using)
        done += cancelled
    return done


# Waiting jobs


def release_message(job_id: uuid.UUID, using: str) -> bool:
    """A message was consumed and the job not claimed: let the relay publish another."""
    return Job.objects.using(using).filter(pk=job_id, state=State.READY).update(dispatched_at=None) == 1


def run_now(job_id: uuid.UUID, using: str) -> bool:
    """A job waits no longer for its time, and gets another message if it waits for one. Race with a claim: as above."""
    job = Job.objects.using(using).filter(pk=job_id)
    due = job.filter(state=State.SCHEDULED).update(**_waiting(None))
    return bool(due or job.filter(state=State.READY).update(dispatched_at=None, republished=1))


def redirect(job_id: uuid.UUID, using: str, change: Callable[[Job], dict[str, Any]]) -> bool:
    """Change how a waiting job's message travels, and have it sent again; a message that is out finds the job as well.

    Race with a claim, and with another change: the row is locked before it is read.
    """
    waiting = Job.objects.using(using).filter(state__in=(State.SCHEDULED, State.READY), pk=job_id)
    with transaction.atomic(using=using):
        job = waiting.select_for_update().first()
        # As if published again: a copy of before may be claimed first, and tells nothing of the line behind it.
        if job is None:
            return False
        again = {"dispatched_at": None, "republished": 0 if job.dispatched_at is None else 1}
        return waiting.update(**change(job), **again) == 1


def postpone(job: Job, seconds: float, error: dict[str, Any]) -> bool:
    """A ready job cannot be published, or nobody who got it knows it: try again later, and show why it waits."""
    ready = Job.objects.using(job._state.db).filter(pk=job.pk, state=State.READY)
    known = any(
        isinstance(entry, dict) and all(entry.get(name) == error[name] for name in ("type", "message"))
        for entry in (job.errors[-1:] if isinstance(job.errors, list) else ())
    )
    errors = job.errors if known else _with(job.errors, error)
    with transaction.atomic(using=job._state.db):
        if not databases.free(ready).exists():
            return False
        return ready.update(**_waiting(now_plus(seconds)), error=error, errors=errors) == 1


def expire(using: str, limit: int) -> int:
    """Cancel what waited beyond ``expires_at``. Race: a claim compares the same clock in its own statement."""
    late = Job.objects.using(using).filter(state__in=(State.SCHEDULED, State.READY), expires_at__lte=Now())
    if not late.exists():
        return 0
    error = error_entry("Expired", "the job was not started before expires_at")
    with transaction.atomic(using=using):
        ids = list(databases.free(late).values_list("pk", flat=True)[:limit])
        done = late.filter(pk__in=ids).update(state=State.CANCELLED, finished_at=Now(), error=error)
        report_cancelled(ids, using)
    return done


def cancel(job_id: uuid.UUID, using: str, kind: str = "Cancelled", why: str = "cancelled by hand") -> bool:
    """Cancel a job that waits. Race: a claim at the same moment; one of the two finds the row changed."""
    waiting = Job.objects.using(using).filter(pk=job_id, state__in=(State.SCHEDULED, State.READY))
    done = waiting.update(state=State.CANCELLED, finished_at=Now(), error=error_entry(kind, why)) == 1
    if done:
        report_cancelled([job_id], using)
    return done


def cancel_waiting(using: str, limit: int, why: str) -> int:
    """Cancel one batch of all that waits. Race with a claim: as in :func:`cancel`."""
    waiting = Job.objects.using(using).filter(state__in=(State.SCHEDULED, State.READY))
    ids = list(waiting.values_list("pk", flat=True)[:limit])
    error = error_entry("Cancelled", why)
    return waiting.filter(pk__in=ids).update(state=State.CANCELLED, finished_at=Now(), error=error) if ids else 0


def replay(job_id: uuid.UUID, using: str) -> bool:
    """Run a failed or cancelled job again, its counts at zero. ``lease`` stays: it is the fence.

    Raises:
        UniqueTaken: another job has its unique key; says which.
        UniqueBusy: another transaction may be taking it.
    """
    over = Job.objects.using(using).filter(pk=job_id, state__in=(State.FAILED, State.CANCELLED))
    # Those of ended jobs only: the note is of the run before.
    Cancellation.objects.using(using).filter(Exists(over), pk=job_id).delete()
    try:
        with databases.bounded(using, conf().UNIQUE_WAIT):
            values = {**_waiting(None), "unique_key": _unexpired_key()}
            return over.update(**values, finished_at=None, expires_at=None, **dict.fromkeys(COUNTS, 0)) == 1
    except IntegrityError:
        raise UniqueTaken(unique.describe(Job.objects.using(using).get(pk=job_id))) from None
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        raise UniqueBusy("another transaction is about to take its unique key; try again in a moment") from exc


def is_paused(using: str) -> Exists:
    """An expression: whether the queue of a job is paused."""
    return Exists(Pause.objects.using(using).filter(pk=OuterRef("queue")))


def due(using: str, limit: int, skip: int = 0) -> list[uuid.UUID]:
    """What should be published now: up to ``limit`` jobs whose message is missing, and as many whose time has come.

    Parameters:
        skip: pass over so many of each, which somebody has locked.
    """
    rows = Job.objects.using(using).filter(~is_paused(using)).order_by("run_at").values_list("pk", flat=True)
    missing = rows.filter(state=State.READY, dispatched_at=None)[skip : skip + limit]
    return [*missing, *rows.filter(state=State.SCHEDULED, run_at__lte=Now())[skip : skip + limit]]


def dispatch(ids: Iterable[uuid.UUID], using: str) -> list[Job]:
    """Take jobs for publishing. Race: of several relays, each row goes to one; a locked row is skipped."""
    with transaction.atomic(using=using):
        missing = Q(state=State.READY, dispatched_at=None) | Q(state=State.SCHEDULED, run_at__lte=Now())
        rows = list(databases.free(Job.objects.using(using).filter(missing, pk__in=list(ids))))
        Job.objects.using(using).filter(pk__in=[job.pk for job in rows]).update(state=State.READY, dispatched_at=Now())
    return sorted(rows, key=lambda job: job.run_at)


def undispatch(ids: Sequence[uuid.UUID], using: str) -> int:
    """These were not published after all. One that somebody has locked is published again after its grace."""
    if not ids:
        return 0
    ready = Job.objects.using(using).filter(pk__in=ids, state=State.READY)
    with transaction.atomic(using=using):
        return ready.filter(pk__in=list(databases.free(ready).values_list("pk", flat=True))).update(dispatched_at=None)


def published_by(until: datetime.datetime) -> Q:
    """A condition: published at ``until`` or before.

    SQLite compares text, and writes the same moment in two ways: ``14.000``, by its own clock, is not up to ``14``.
    """
    return Q(dispatched_at__lt=until + datetime.timedelta(milliseconds=1))


def dispatch_again(ids: Iterable[uuid.UUID], until: datetime.datetime, using: str) -> list[Job]:
    """Take jobs that were published before ``until`` for another copy. Race: as :func:`dispatch`."""
    with transaction.atomic(using=using):
        old = Job.objects.using(using).filter(published_by(until), state=State.READY, pk__in=list(ids))
        rows = list(databases.free(old))
        taken = Job.objects.using(using).filter(pk__in=[job.pk for job in rows])
        taken.update(dispatched_at=Now(), republished=F("republished") + 1)
    return sorted(rows, key=lambda job: job.run_at)


def settle_running(key: uuid.UUID, using: str, transition: Callable[[Job], bool], **where: Any) -> bool:
    """Settle a running job from outside of its run, unless somebody has locked its row.

    Race: a zombie may sit on the row, between its fenced UPDATE and its COMMIT, for as long as it is paused.
    Whoever rescues does not wait for it, and comes again.
    """
    with transaction.atomic(using=using):
        job = databases.free(Job.objects.using(using).filter(pk=key, state=State.RUNNING, **where)).first()
        return job is not None and transition(job)


# Nodes


def bury(node_id: uuid.UUID, using: str, signed_off: bool = False) -> bool:
    """Declare a node dead, for ever. Its jobs are given back only after this is committed."""
    alive = Node.objects.using(using).filter(pk=node_id, dead_at=None)
    return alive.update(dead_at=Now(), signed_off=signed_off) == 1
