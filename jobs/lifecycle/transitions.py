"""The state machine: every transition of a job, each one conditional statement.

Each function names the race that its condition decides. One run leaves ``running`` by :func:`succeed`, which every job
costs, or by :func:`_finish`: both are fenced by lease and token. :func:`hand_back_claim` gives back what a process
claimed and has not begun, by the token of the claim. Rows become ``running`` by the statements of claims
(``jobs/store``, and stores of extensions). Extensions have the one that wakes a job, and what people do by hand.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils import timezone

from jobs import extensions, store
from jobs.conf import conf
from jobs.lifecycle import unique
from jobs.models import ENDED, UNSUCCESSFUL, WAITING, Cancellation, Job, Node, State
from jobs.models.columns import ADDED
from jobs.models.values import scrub
from jobs.store import databases
from jobs.store.base import owned

#: How many errors a job keeps: as many of the first, and as many of the last.
KEPT_ERRORS = 20
#: ``run_at`` of a job that waits for a worker that can run it.
PARKED = datetime.datetime(9001, 1, 1, tzinfo=datetime.UTC)
#: ``run_at`` of a job that waits for something else than a time: the code that brings this makes the job ready.
NEVER = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)
UNEXPIRED_KEY = Case(When(unique_expires_at__lte=Now(), then=None), default=F("unique_key"))


def due_at(job: Job) -> datetime.datetime | None:
    """When a job's time comes, or came; None: it waits for something else."""
    return None if job.run_at >= NEVER else job.run_at


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
    # A person may have edited the row by hand.
    kept = [*(errors if isinstance(errors, list) else ()), entry]
    return kept if len(kept) <= 2 * KEPT_ERRORS else kept[:KEPT_ERRORS] + kept[-KEPT_ERRORS:]


def _ended(state: State, error: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "finished_at": Now(), "error": error}


def waiting(run_at: Any) -> dict[str, Any]:
    """The columns of a job that waits: for its time, or (None) only for its turn."""
    return {
        "state": State.READY if run_at is None else State.SCHEDULED,
        "run_at": Now() if run_at is None else run_at,
        # A later claim by an older release does not set it. Rescue would then end the process of the earlier claim.
        "backend": None,
        "held": None,
        "waits_for": None,
    }


# Out of running: the two doors


def succeed(job: Job, result: Any, runtime: float, source: Job | None = None, is_synced: bool = True) -> bool:
    """The last statement of the body's own transaction, so that effects and completion are one commit.

    False: the job was given to another run, or was asked to end (:func:`heed`).

    Parameters:
        runtime: seconds since the body began; the row was claimed before that, together with others.
        source: the job that had done the work before, if any; the result is its own.
        is_synced: the commit waits for the disk.
    """
    at = store.of(str(job._state.db))
    # The body may have caught an error that its transaction did not survive.
    at.connection.validate_no_broken_transaction()
    if done := at.succeed(job, result, runtime, is_synced) if source is None else at.succeed_as(job, result, source):
        note_success(job, result)
    return done


def succeed_all(done: Sequence[tuple[Job, Any, float]], is_synced: bool) -> bool:
    """The same of several runs in one transaction: job, result and runtime of each. False: not of all of them.

    Race: the supervisor may have given one back. Then nothing of the transaction is committed.
    """
    at = store.of(str(done[0][0]._state.db))
    at.connection.validate_no_broken_transaction()
    return at.succeed_all(done, is_synced)


def note_success(job: Job, result: Any) -> None:
    """Set on the instance what its row says by now."""
    job.__dict__.update(state=State.SUCCEEDED, result=result, error=None)
    # The next access reads them from the row.
    for computed in ("finished_at", "started_at", "replay_of"):
        job.__dict__.pop(computed, None)


def _finish(job: Job, **values: Any) -> bool:
    """Race: this run may be a zombie, whose job was given to another. Then no row matches: False."""
    written = _written_with(job, values["error"]) if values["state"] in UNSUCCESSFUL else []
    job.attempted.append((values.get("error") or {}).get("at"))

    def write() -> bool:
        done = owned(job).update(**values) == 1
        for each in written if done else ():
            each()
        return done

    if not databases.again_if_moved(str(job._state.db), write, is_one=not written):
        return False
    for name, value in values.items():
        setattr(job, name, value)
    job.forget_computed()
    return True


def _written_with(job: Job, error: dict[str, Any]) -> list[Callable[[], None]]:
    """What extensions write in the transaction that ends the job without success."""
    return [write for look in extensions.through("ended") if (write := look(job, error)) is not None]


def fail(job: Job, error: dict[str, Any], **values: Any) -> bool:
    return _finish(job, **{**_ended(State.FAILED, error), "errors": _with(job.errors, error), **values})


def cancel_running(job: Job, error: dict[str, Any]) -> bool:
    """The run itself asked for it (Celery's ``Ignore``)."""
    return _finish(job, **_ended(State.CANCELLED, error))


def retry(job: Job, run_at: Any, error: dict[str, Any], changes: dict[str, Any]) -> bool:
    """Back to wait for ``run_at``; ``changes`` are the columns that ``Task.retry()`` was given anew."""
    return wait(job, run_at, error, "retries", **changes)


def hand_back(job: Job, delay: float, error: dict[str, Any] | None = None, waits_for: str | None = None) -> bool:
    """The job gave up its run without fault of its own; no counter changes."""
    run_at = now_plus(delay) if delay > 0 else None
    return wait(job, run_at, error, is_kept=False, waits_for=waits_for)


def snooze(job: Job, seconds: float, entry: dict[str, Any], limit: int) -> bool:
    """The body, or what it needs, asked for another time; it uses no attempt. Too often ends ``failed``."""
    return wait(job, now_plus(seconds), entry, "snoozes", limit, is_kept=False)


def lose(job: Job, error: dict[str, Any], limit: int) -> bool:
    """The run is gone with its node or its database. Not the body's fault: it has a counter and a limit of its own."""
    return wait(job, _after_losses(job.node_losses), error, "node_losses", limit)


def crash(job: Job, error: dict[str, Any], limit: int) -> bool:
    """The process died in exactly this body. A job that keeps doing that ends ``failed``."""
    return wait(job, _after_losses(job.crashes), error, "crashes", limit)


def _after_losses(times: int) -> Any:
    """None (at once) for the first time, then 1, 2, 4 ... 60 seconds."""
    return now_plus(min(60.0, 2.0 ** (times - 1))) if times else None


def wait(
    job: Job,
    run_at: Any,
    error: dict[str, Any] | None = None,
    count: str = "",
    limit: int | None = None,
    is_kept: bool = True,
    **values: Any,
) -> bool:
    """Out of running, to wait again; a run that was asked to end does not come back.

    Parameters:
        error: why; ``is_kept`` says whether it stays in the job's history.
        count: the counter that rises, one of the job's; when it reaches ``limit`` the job ends ``failed``.
    """
    if heed(job):
        return True
    counted = {count: F(count) + 1} if count else {}
    if error is not None:
        if limit is not None and getattr(job, count) + 1 >= limit:
            return fail(job, error, **counted)
        values |= {"error": error, "errors": _with(job.errors, error)} if is_kept else {"error": error}
    values = {**waiting(run_at), **counted, **values}
    is_new = "unique_key" in values
    if job.unique_key is None or (job.unique_until == "finished" and not is_new):
        return _finish(job, **values)
    if job.unique_expires_at is not None and not is_new:
        values["unique_key"] = UNEXPIRED_KEY
    try:
        with store.of(str(job._state.db)).bounded(conf().UNIQUE_WAIT):
            return _finish(job, **values)
    except IntegrityError:
        # Race: since this run began, another job took the key. Two may not wait, and the other one does the work.
        taken = error_entry("UniqueTaken", unique.describe(job), attempt=job.lease)
        return fail(job, taken, **counted, errors=_with(values.get("errors", job.errors), taken))
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        # Another transaction may be taking the key, and does not end. Two waiting jobs are better than a lost retry.
        return _finish(job, **{**values, "unique_key": None})


# A running job is asked to end


def ask_to_end(job_id: uuid.UUID, using: str, kind: str = "Cancelled", why: str = "cancelled by hand") -> bool:
    """Leave a note for a running job, which its run heeds at its next checkpoint or at its end.

    Race: the run may end at this moment, or go back to wait. Then the next :func:`sweep_cancellations` finds the note.
    """
    if not Job.objects.using(using).filter(pk=job_id, state=State.RUNNING).exists():
        return False
    note = Cancellation(job=job_id, kind=kind, reason=scrub(why, 4000))
    Cancellation.objects.using(using).bulk_create([note], ignore_conflicts=True)
    return True


def asked_to_end(job: Job) -> Cancellation | None:
    return Cancellation.objects.using(job._state.db).filter(pk=job.pk).first()


def heed(job: Job) -> bool:
    """End the run if it was asked to end; False: it was not, or it does not own the job any more."""
    note = asked_to_end(job)
    if note is None or not cancel_running(job, error_entry(note.kind, note.reason, attempt=job.lease)):
        return False
    note.delete(using=job._state.db)
    return True


def owns(job: Job) -> bool:
    return owned(job).exists()


def hold(job: Job) -> bool:
    """Whether this run owns the job. If so, it keeps it until the end of the transaction: no process can rescue it."""
    return bool(owned(job).select_for_update().values_list("pk"))


def sweep_cancellations(using: str, limit: int) -> int:
    """Cancel jobs that were asked to end and wait again, and drop the notes of those that ended."""
    done = 0
    running = Job.objects.using(using).filter(pk=OuterRef("job"), state=State.RUNNING)
    for note in Cancellation.objects.using(using).filter(~Exists(running)).order_by("at")[:limit]:
        job = Job.objects.using(using).filter(pk=note.pk)
        with transaction.atomic(using=using):
            waits = databases.free(job.filter(state__in=WAITING)).exists()
            cancelled = waits and cancel(note.pk, using, note.kind, note.reason)
            if cancelled or not job.exclude(state__in=ENDED).exists():
                note.delete(using=using)
        done += cancelled
    return done


def finish_running(key: uuid.UUID, using: str, transition: Callable[[Job], bool], **where: Any) -> bool:
    """Finish a running job from outside of its run, unless another transaction has locked its row.

    Race: a zombie may hold the row's lock, between its fenced UPDATE and its COMMIT. The rescue then comes again.
    """
    with transaction.atomic(using=using):
        job = databases.free(Job.objects.using(using).filter(pk=key, state=State.RUNNING, **where)).first()
        return job is not None and transition(job)


def hand_back_claim(using: str, node: uuid.UUID, token: int, begun: uuid.UUID | None = None) -> int:
    """Let jobs that were claimed with a token, and are not ``begun``, wait again; no counter changes.

    Race with the process that claimed them: before it begins such a row it gives the row a token of its own.
    """
    rest = Job.objects.using(using).filter(state=State.RUNNING, node=node, token=token)
    if begun is not None:
        rest = rest.exclude(pk=begun)
    keyed = Q(unique_key__isnull=False) & ~Q(unique_until="finished")
    write = partial(rest.exclude(keyed).update, state=State.READY, backend=None)
    # Race: one of them ends at this moment.
    done = databases.again_if_moved(using, write, is_one=True)
    # Another job may have taken the key since.
    return done + sum(wait(job, F("run_at"), is_kept=False, state=State.READY) for job in rest.filter(keyed))


# Waiting jobs. Each races with a claim: both check the row's state, and the later one finds it changed


def change_free(waiting: QuerySet[Job], using: str, limit: int, changes: dict[str, Any]) -> list[str]:
    """Change those of the waiting jobs that are not locked; returns the queue of each."""

    def write() -> list[str]:
        rows = dict(databases.free(waiting).values_list("pk", "queue")[:limit])
        # Both states are named: so PostgreSQL knows the partition, and does not use the index of all scheduled jobs.
        Job.objects.using(using).filter(pk__in=rows, state__in=WAITING).update(**changes)
        return list(rows.values())

    return databases.again_if_moved(using, write)


def make_due(using: str, limit: int, first: str = "run_at", at: Any = None, since: Any = None) -> list[str]:
    """Move scheduled jobs whose time has come to ``ready``; returns the queue of each. A locked row is skipped.

    Parameters:
        at: the time, if it is not now by the database's clock; only tests move it.
        since: no job is due before this time, as an earlier query found; as the database writes it.
    """
    late = Job.objects.using(using).filter(state=State.SCHEDULED, run_at__lte=at or Now()).order_by(first)
    if since is not None:
        late = late.filter(run_at__gte=RawSQL("%s", [since]))
    if not late.values_list("pk")[:1]:
        return []
    return change_free(late, using, limit, {"state": State.READY, "held": None, "waits_for": None})


def expire(using: str, limit: int, at: Any = None, since: Any = None) -> int:
    """Cancel what waited beyond ``expires_at``. A claim compares the same clock in its own statement.

    Parameters:
        at, since: as of :func:`make_due`.
    """
    late = Job.objects.using(using).filter(state__in=WAITING, expires_at__lte=at or Now())
    if since is not None:
        late = late.filter(expires_at__gte=RawSQL("%s", [since]))
    if not late.exists():
        return 0
    with transaction.atomic(using=using):
        by_text: dict[str, list[uuid.UUID]] = {}
        for key, started_at in databases.free(late).values_list("pk", "started_at")[:limit]:
            # What was claimed before waits for its next run: a durable task, say, or one that is retried.
            is_new = started_at is None
            text = "the job was not started before expires_at" if is_new else "its expires_at came before its next run"
            by_text.setdefault(text, []).append(key)
        return sum(cancel_all(ids, using, "Expired", text) for text, ids in by_text.items())


def cancel(job_id: uuid.UUID, using: str, kind: str = "Cancelled", why: str = "cancelled by hand") -> bool:
    return cancel_all([job_id], using, kind, why) == 1


def cancel_all(ids: Sequence[uuid.UUID], using: str, kind: str, why: str, is_told: bool = True) -> int:
    def write() -> int:
        waiting = Job.objects.using(using).filter(pk__in=ids, state__in=WAITING)
        error = error_entry(kind, why)
        # Read before the update: after it a row no longer shows that it was this call that cancelled it.
        rows = waiting.select_for_update().only("id", "options", "task", "queue", "lease", "parent_id", "root", *ADDED)
        written = [each for job in rows for each in _written_with(job, error)] if is_told else []
        done = waiting.update(**_ended(State.CANCELLED, error))
        for each in written:
            each()
        return done

    def tell() -> None:
        # Read when the first extension asks, and once for all.
        cancelled = Job.objects.using(using).filter(pk__in=ids, state=State.CANCELLED)
        for happened in extensions.through("happened"):
            happened(cancelled, using, "cancelled")

    done = databases.again_if_moved(using, write)
    # With autocommit off no hook tells us of the commit.
    knows = connections[using].in_atomic_block or connections[using].get_autocommit()
    if done and is_told and knows:
        transaction.on_commit(tell, using=using, robust=True)
    return done


def write_death(node_id: uuid.UUID, using: str, signed_off: bool = False) -> bool:
    """Declare a node dead, for ever. Its jobs are given back only after this is committed.

    A database that lost the node's row, but not its jobs, gets a new row that says that the node is dead.
    """
    nodes, running = Node.objects.using(using), Job.objects.using(using).filter(state=State.RUNNING)
    if nodes.filter(pk=node_id, dead_at=None).update(dead_at=Now(), signed_off=signed_off) == 1:
        return True
    if nodes.filter(pk=node_id).exists() or not running.filter(node=node_id).exists():
        return False
    # Race: another rescuer does the same.
    dead = Node(pk=node_id, hostname="unknown", pid=0, dead_at=Now(), signed_off=signed_off)
    nodes.bulk_create([dead], ignore_conflicts=True)
    return True
