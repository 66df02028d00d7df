"""Durable tasks: a body that goes on where it stopped.

Each run goes through the body from the top. What a step did is committed together with its result and the fence of the
run. A later run gets the result and does nothing; the step of a zombie rolls back. A wait is a row with a date or a
key: the run ends there, and the job waits like any other.

The way of Temporal and DBOS, with the effects of a step in Django's own transaction.
"""

from __future__ import annotations

import datetime
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

from celery.canvas import Signature
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.time import get_exponential_backoff_interval
from django.db import Error, transaction
from django.db.models import Exists, OuterRef, Value
from django.db.models.functions import Concat, Now
from django.db.transaction import TransactionManagementError
from django.utils.translation import gettext

from jobs import store
from jobs.conf import conf, is_ours
from jobs.conf.logs import log
from jobs.conf.syncpoints import reach
from jobs.contrib.durable import signals
from jobs.contrib.durable.models import Step
from jobs.contrib.durable.store import Gone, steps, take, write_done
from jobs.contrib.passing.backoff import may_pass, of_the_table, says_how_to_retry
from jobs.contrib.results.endings import exception_of, instead_of
from jobs.contrib.sessions.links import revive
from jobs.contrib.waking.waking import suspend, wake
from jobs.errors import Busy, Cancel, EffectParked, LostLease, NotSettled
from jobs.execution import finish
from jobs.execution.pipeline import RERUNS
from jobs.lifecycle.run import Run, Suspended, current_run, on_thread, persistently
from jobs.lifecycle.transitions import NEVER, lose, now_plus
from jobs.lifecycle.worker_state import worker_state
from jobs.models import LIVE, Cancellation, Job, State
from jobs.models.values import decoded, jsonable
from jobs.store import databases
from jobs.store.base import owned

STEP, SLEEP, WAIT, GATHER, VERSION = Step.Kind
DONE, FAILED, WAITING = Step.State.DONE, Step.State.FAILED, Step.State.WAITING

#: How many steps a job may have: each run reads them all.
MOST = 10_000
#: Seconds for which a connection that is not used is trusted.
TRUSTED = 1.0
#: What ``Job.waits_for`` begins with: while a job waits for its children, before the id of their batch; while a job
#: sleeps, and until a step is tried again, before the name of the step, for people who look.
CHILDREN, SLEEPS, AGAIN = "gather:", "sleep:", "step:"
#: The lease of a sleep that was cut short by the end of its job: a retry sleeps on.
INTERRUPTED = 0

#: The exceptions of a step's function that say what the job is to do, and not what became of the step.
_OF_THE_JOB = (Ignore, Reject, Retry, SoftTimeLimitExceeded)


#: Each coroutine has its own: several awaited steps may go on side by side.
_in_awaited_step: ContextVar[bool] = ContextVar("in_awaited_step", default=False)


def history_of(task: Any) -> History | None:
    """What the job of this run has done so far; None in a plain call of the task, which makes no job."""
    run = current_run()
    if run is None and task.request_stack.top is None and worker_state.silence:
        raise RuntimeError("a thread that a body started has no job: call the step in the thread of the body")
    if run is None or run.task.name != task.name:
        return None
    if (found := vars(run).get("history")) is None:
        found = vars(run)["history"] = History(run)
    return found


def suspended(run: Run) -> Suspended | None:
    """The wait that has ended this run; None: no wait has."""
    return getattr(vars(run).get("history"), "suspended", None)


class _NotOurs(Exception):
    """The fence did not hold."""


def is_in_step(run: Run) -> bool:
    return _in_awaited_step.get() or getattr(vars(run).get("history"), "is_in_step", False)


def deadline_of(run: Run) -> datetime.datetime | None:
    """When the job is to be cancelled at the latest. What its call said (``expires=``) was about its start.

    None also in a run that a person asked for after the deadline. The database's clock decides.
    """
    if run.task.deadline is None:
        return None
    assert run.job.started_at is not None
    found: datetime.datetime = run.job.created_at + run.task.deadline
    # A retry by hand takes the job's ``expires_at`` away.
    return found if found > run.job.started_at or run.job.expires_at is not None else None


def late() -> Cancel:
    found = Cancel("its deadline is over")
    found.kind = "Expired"
    return found


def end_in_time(run: Run) -> None:
    """Called in the transaction that completes the run. ``Cancel``: the job's deadline is over."""
    if (deadline := deadline_of(run)) is not None and databases.clock(run.using) >= deadline:
        raise late()


class History:
    """The steps of a job, as one run meets them."""

    def __init__(self, run: Run) -> None:
        self.run, self.job, self.using = run, run.job, run.using
        rows = databases.patiently(run.using, partial(steps, run.job.pk, run.using))
        self._rows = {row.name: row for row in rows}
        #: The keys of the rows that earlier runs have written, in order.
        self._earlier = [row.pk for row in self._rows.values()]
        self._deadline = deadline_of(run)
        self._met: Counter[str] = Counter()
        #: The last row of an earlier run that this run has met.
        self._last = 0
        self.is_in_step = False
        self._used_at = time.monotonic()
        #: A wait has ended this run.
        self.suspended: Suspended | None = None

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        retries: int | None = None,
        on_cancel: dict[str, Any] | None = None,
        is_atomic: bool = True,
    ) -> Any:
        """
        Parameters:
            is_atomic: the function runs in the transaction of the step, else before it: then it gets the row.
        """
        row = self._step(name, on_cancel)
        if row.state == DONE:
            return decoded(row.result)
        try:
            if is_atomic:
                return self._commit(row, function)
            result = self._inside(partial(function, row))
            return self._commit(row, lambda: result, heeds=False)
        except _OF_THE_JOB:
            raise
        except Exception as exc:
            self._has_failed(row, exc, retries)
            raise

    async def astep(
        self,
        name: str,
        function: Callable[[Step], Awaitable[Any]],
        retries: int | None = None,
        on_cancel: dict[str, Any] | None = None,
    ) -> Any:
        """The same, for a function that is awaited before the transaction."""
        row = await on_thread(partial(self._step, name, on_cancel))
        if row.state == DONE:
            return decoded(row.result)
        try:
            inside = _in_awaited_step.set(True)
            try:
                result = await function(row)
            finally:
                _in_awaited_step.reset(inside)
            return await on_thread(partial(self._commit, row, lambda: result, heeds=False))
        except _OF_THE_JOB:
            raise
        except Exception as exc:
            await on_thread(partial(self._has_failed, row, exc, retries))
            raise

    def _step(self, name: str, on_cancel: dict[str, Any] | None) -> Any:
        row = self._meet(name, STEP)
        if row.state == FAILED:
            raise self._final(row.error)
        row.on_cancel = on_cancel
        return row

    def sleep(self, name: str, until: Any) -> None:
        row = self._meet(name, SLEEP)
        # If a run begins while its job sleeps, a person has asked for it: it goes on.
        if row.pk is None or (row.lease == INTERRUPTED and not self._is_over(row)):
            row.until = row.until or until
            raise self._suspend(row, f"sleeps: {row.name}", row.until, SLEEPS + row.name)

    def wait_for(self, key: str, name: str, until: Any) -> Any:
        row = self._meet(name, WAIT)
        if row.state == DONE:
            return decoded(row.result)
        row.key = key
        # A run that goes on here was probably woken by the signal.
        if row.pk is not None or signals.is_there(key, self.using):
            # Race: another job takes the signal first.
            with suppress(Gone):
                return self._commit(row, None)
        if row.pk is None:
            row.until = until
        elif self._is_over(row):
            return self._commit(row, lambda: None)
        # Race: the signal comes before this commits, and its sender sees no wait. So we look for it after the commit.
        look = partial(signals.wake_if_there, key, self.using)
        raise self._suspend(row, f"waits for the signal {key}", row.until or NEVER, signals.SIGNAL + key, look)

    def gather(self, name: str, signatures: Sequence[Any], return_exceptions: bool) -> list[Any]:
        row = self._meet(name, GATHER)
        if row.state == FAILED:
            raise self._final(row.error)
        outcomes = row.result
        if row.state != DONE:
            ids = row.result if row.pk else self._commit(row, partial(self._call, row, signatures), WAITING)
            if (outcomes := self._outcomes(row, ids)) is None:
                # Race: the last child ends before this is committed.
                look = partial(wake_parent, row.key, self.using)
                raise self._suspend(row, f"waits for its {len(ids)} children", NEVER, CHILDREN + row.key, look)
            failed = next((said for is_done, said in outcomes if not is_done), None)
            if failed is not None and not return_exceptions:
                self._fail(row, failed)
                raise self._final(failed)
            self._commit(row, lambda: outcomes)
        found = decoded(outcomes)
        return [said if is_done else exception_of(said, self.run.task.backend) for is_done, said in found]

    def version(self, name: str) -> bool:
        row = self._meet(name, VERSION)
        if row.pk is None:
            if self._earlier and self._earlier[-1] > self._last:
                # An earlier run has gone past this point without it.
                return False
            self._commit(row, lambda: True)
        return True

    # The rows

    def _meet(self, name: str, kind: str) -> Any:
        """The row of the step that comes now; a new one has no ``pk``."""
        if self.suspended is not None:
            # The body has caught what ended the run.
            raise self.suspended
        if not isinstance(name, str) or not 0 < len(name) <= 240 or {"#", "\0"} & {*name}:
            raise ValueError(f"a step needs a name of 1 to 240 characters without # and NUL, and not {name!r}")
        if self.is_in_step or _in_awaited_step.get():
            raise RuntimeError(f"{name!r} is inside of another step, which is kept as one: call one after the other")
        if databases.in_transaction(self.using):
            raise TransactionManagementError(
                f"{name!r} is inside of transaction.atomic(), and a step commits by itself: move the block into the "
                "function of a step"
            )
        self._revive()
        self._met[name] += 1
        full = name if self._met[name] == 1 else f"{name}#{self._met[name]}"
        if (row := self._rows.get(full)) is not None:
            if row.kind != kind:
                raise RuntimeError(f"{full!r} was a {row.kind} when the job reached it, and is a {kind} now: rename it")
            if row.pk is not None:
                self._last = max(self._last, row.pk)
            row.began = time.monotonic()
            return row
        if len(self._rows) >= MOST:
            exc = RuntimeError(
                f"the job has {MOST} steps, and each run reads them all: give parts of the work to children "
                "(self.gather), or use atomic=False and save_cursor()"
            )
            exc.ends_job = True  # type: ignore[attr-defined]
            raise exc
        new: Any = Step(job=self.job.pk, name=full, kind=kind)
        new.began = time.monotonic()
        return new

    def _revive(self) -> None:
        """Before a transaction: the body, or what it awaited, may have taken long."""
        if time.monotonic() - self._used_at > TRUSTED:
            revive(self.using)
        self._used_at = time.monotonic()

    def _is_over(self, row: Any) -> bool:
        """Whether the time of a wait is over. It is if the job came due, even if a test moves the time."""
        # The time of the job was computed one statement before that of the row: on SQLite it is some milliseconds less.
        if row.until is None:
            return False
        return row.until.timestamp() <= row.now or self.job.run_at >= row.until - datetime.timedelta(seconds=1)

    def _put(self, row: Any, **values: Any) -> None:
        for name, value in {**values, "lease": self.job.lease}.items():
            setattr(row, name, value)
        if row.pk is None or row.kind == STEP:
            # For a step: when this attempt began.
            row.made_at = now_plus(row.began - time.monotonic())
        row.save(using=self.using)

    def _commit(self, row: Any, work: Callable[[], Any] | None, state: str = DONE, heeds: bool = True) -> Any:
        """Do the work in one transaction with its row and the fence, and keep what it returns.

        Parameters:
            work: None: take the signal of the row's key.
            heeds: refuse it if the job was asked to end. False: it has happened already, and is kept all the same.
        """
        pauses = iter(RERUNS)
        while True:
            try:
                kept = self._attempt(row, work, state, heeds)
            except Exception as exc:
                # It met another transaction: a second try may succeed. The fence looks whether the job is still ours.
                if not databases.is_conflict(exc) or (pause := next(pauses, None)) is None:
                    raise
                time.sleep(random.uniform(0, pause))
            else:
                self._rows[row.name] = row
                reach("after_step")
                return decoded(kept)

    def _attempt(self, row: Any, work: Callable[[], Any] | None, state: str, heeds: bool) -> Any:
        at, is_sent, is_lost = store.of(self.using), False, False
        self._revive()
        try:
            with at.write_mutex(), transaction.atomic(using=self.using):
                try:
                    at.prepare_body()
                    if work is not None:
                        row.result = jsonable(self._inside(work), f"the result of the step {row.name!r}")
                    is_sent = True
                    self._end_step(row, state, heeds, takes=work is None)
                    reach("before_step")
                except BaseException as exc:
                    # Before the end of the block, which opens a new connection in place of a broken one.
                    is_lost = databases.is_lost(exc, self.using)
                    databases.roll_back(self.using)
                    raise
        except Gone:
            # Nothing was written.
            raise
        except _NotOurs:
            with transaction.atomic(using=self.using):
                self._hold()
            # The deadline came in between.
            raise late() from None
        except Exception as exc:
            finish.let_end(exc)
            if is_sent and (found := self._committed(row, state)) is not None:
                row.pk, row.state = found.pk, state
                text = f"the step {row.name!r} is done although {type(exc).__name__} was raised at its commit"
                log(logging.WARNING, self.job, text, "step_struck", exc_info=exc)
                if isinstance(exc, SoftTimeLimitExceeded):
                    # The limit struck in the commit: the step is done, and the body gets the exception.
                    raise
                return found.result
            is_refused = is_sent and isinstance(exc, Error) and finish.is_passing(exc)
            if (is_lost or is_refused) and not databases.is_conflict(exc):
                raise self._lost(exc) from exc
            raise
        return row.result

    def _inside(self, work: Callable[[], Any]) -> Any:
        self.is_in_step = True
        try:
            return work()
        finally:
            self.is_in_step = False

    def _end_step(self, row: Any, state: str, heeds: bool, takes: bool) -> None:
        """Take the signal, check the fence and write the row. If one statement does it, the COMMIT goes with it."""
        is_done = None
        # Where the COMMIT goes with the statement, Django does not look.
        store.of(self.using).validate()
        if state == DONE:
            is_done = write_done(self.job, row, time.monotonic() - row.began, heeds, self._deadline, takes)
        if is_done is not None:
            if not is_done:
                raise _NotOurs
            row.state = state
            return
        if takes:
            row.result = take(row.key, self.job.pk, self.using)
        self._hold(heeds)
        self._put(row, state=state, error=None, **({"done_at": Now()} if state == DONE else {}))

    def _hold(self, heeds: bool = True) -> None:
        """The fence. From here on, no other process can take the job away until the transaction ends."""
        asked = Cancellation.objects.using(self.using).filter(pk=OuterRef("pk"))
        found = owned(self.job).annotate(is_asked=Exists(asked), now=Now())
        row = found.select_for_update().values_list("is_asked", "now").first()
        if row is None:
            raise LostLease("this run lost its lease; its step is rolled back")
        is_late = self._deadline is not None and row[1] >= self._deadline
        if heeds and (row[0] or is_late):
            raise Cancel("it was asked to end") if row[0] else late()

    def _committed(self, row: Step, state: str) -> Step | None:
        """The answer of a COMMIT can get lost: read the row on a new connection, and believe it."""
        written = Step.objects.using(self.using).filter(job=row.job, name=row.name, state=state, lease=self.job.lease)

        def read() -> bool:
            databases.drop(self.using)
            found.extend(written)
            return True

        found: list[Step] = []
        persistently(self.run, read)
        return found[0] if found else None

    # What ends a run

    def _suspend(
        self,
        row: Any,
        text: str,
        run_at: Any,
        waits_for: str | None = None,
        look: Callable[[], Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> Suspended:
        """What ends the run. The job and the step wait from the same commit on.

        Parameters:
            look: called after the commit: what it waits for may have come meanwhile.
        """

        def write() -> bool:
            with transaction.atomic(using=self.using):
                done = suspend(self.job, run_at, waits_for, error, self._deadline)
                if done and self.job.state == State.SCHEDULED:
                    self._put(row, state=WAITING, error=error)
                reach("before_suspend")
            reach("after_suspend")
            if done and look is not None:
                look()
            return done

        self.suspended = Suspended(text, write)
        return self.suspended

    def _lost(self, exc: Exception) -> Suspended:
        error = finish.entry(self.run, exc)
        write = partial(lose, self.job, error, conf().MAX_NODE_LOSSES)
        self.suspended = Suspended(f"lost its database: {error['message']}", write)
        return self.suspended

    def _has_failed(self, row: Any, exc: Exception, retries: int | None) -> None:
        finish.let_end(exc)
        error = finish.entry(self.run, exc)
        pause = self._pause(exc, row.failures, retries)
        row.failures += 1
        if pause is not None:
            text = f"tries the step {row.name!r} again in {pause:.0f} s: {error['type']}: {error['message']}"
            row.until = now_plus(pause)
            raise self._suspend(row, text, now_plus(pause), AGAIN + row.name, error=error)
        self._fail(row, error)
        _end_job(exc)

    def _fail(self, row: Any, error: dict[str, Any]) -> None:
        def write() -> bool:
            with transaction.atomic(using=self.using):
                self._hold()
                self._put(row, state=FAILED, error=error, done_at=Now())
            return True

        if persistently(self.run, write) is None:
            raise NotSettled("the database is away")
        self._rows[row.name] = row

    def _final(self, error: Any) -> Exception:
        """What a step failed with, for a body that may want to catch it."""
        return _end_job(exception_of(error or {}, self.run.task.backend))

    def _pause(self, exc: Exception, failures: int, retries: int | None) -> float | None:
        """Seconds until the next attempt; None: it has failed for good."""
        task = self.run.task
        if isinstance(exc, (EffectParked, *task.throws)):
            return None
        if retries is None and not says_how_to_retry(task):
            return of_the_table(failures) if may_pass(exc) else None
        if retries is None:
            wanted, unwanted = (tuple(getattr(task, f"{no}autoretry_for", ())) for no in ("", "dont_"))
            if not isinstance(exc, wanted) or isinstance(exc, unwanted):
                return None
            retries = getattr(task, "retry_kwargs", {}).get("max_retries", task.max_retries)
        if retries is not None and failures >= retries:
            return None
        if factor := getattr(task, "retry_backoff", False):
            most, jitter = getattr(task, "retry_backoff_max", 600), getattr(task, "retry_jitter", True)
            return float(get_exponential_backoff_interval(int(max(1.0, factor)), failures, most, jitter))
        if says_how_to_retry(task) or not (table := conf().RETRY):
            pause = getattr(task, "retry_kwargs", {}).get("countdown")
            return float((task.default_retry_delay if pause is None else pause) or 0)
        return of_the_table(min(failures, len(table) - 1))

    # Children

    def _call(self, row: Any, signatures: Sequence[Any]) -> list[str]:
        # Durable tasks do without batches until one has children.
        from jobs.contrib.batches.batch import batch

        app = self.run.task.app
        for each in signatures:
            task = app.tasks.get(each.task) if isinstance(each, Signature) else None
            if task is None or not is_ours(task) or each.subtask_type:
                raise TypeError(
                    f"self.gather() takes one list of calls of tasks of jobs, [task.s(...), ...], and not {each!r}: "
                    "call a chain, group or chord in a step"
                )
            if "unique" in task.key_templates:
                raise TypeError(f"{task.name} has unique=: its job may be another call's, and is nobody's child")
        told = app.tasks["jobs.wake"].si(str(self.job.pk), row.name).set(queue=self.job.queue)
        with batch(f"{self.job.task}: {row.name}", told, told, self.using) as made:
            row.key = str(made.pk)
            first = next(iter(signatures), None)
            if first and all(each.task == first.task and not each.kwargs and not each.options for each in signatures):
                return [str(each.id) for each in first.type.delay_many([each.args for each in signatures], self.using)]
            return [str(each.apply_async(using=self.using).id) for each in signatures]

    def _outcomes(self, row: Any, ids: Sequence[str]) -> list[Any] | None:
        """What came of the children, each ``[True, result]`` or ``[False, error]``; None while one may still run."""
        jobs = Job.objects.using(self.using)
        found: dict[str, list[Any]] = {}
        if jobs.filter(batch=row.key, state__in=LIVE).exists():
            return None
        # The row of a child that was replaced says that it succeeded.
        names = ("pk", "state", "result", "error", "replay_of", "options__replaced")
        for start in range(0, len(ids), 500):
            rows = jobs.filter(pk__in=ids[start : start + 500])
            for key, state, result, error, heir, replaced in rows.values_list(*names):
                if replaced and result is None and (last := instead_of(key, heir, self.using)):
                    result, error = last.result, last.error
                found[str(key)] = [False, error] if error or state != State.SUCCEEDED else [True, result]
        gone = {"type": "LookupError", "message": "the job was deleted before its result was read"}
        return [found.get(each, [False, gone]) for each in ids]


def _end_job(exc: Exception) -> Exception:
    """No other retry rule applies: a step that has failed for good fails the job."""
    with suppress(AttributeError):
        exc.ends_job = True  # type: ignore[attr-defined]
    return exc


def wake_parent(batch_id: Any, using: str) -> None:
    """Let a job go on if all its children have ended."""
    if not Job.objects.using(using).filter(batch=batch_id, state__in=LIVE).exists():
        wake(f"{CHILDREN}{batch_id}", using)


def run_again(jobs: Any, using: str) -> None:
    """Jobs (a queryset of ended ones) are retried: each goes on at the step that failed."""
    children = Job.objects.using(using).filter(parent_id__in=jobs.values("pk"), state__in=LIVE)
    if children.filter(task="jobs.compensate").exists():
        raise Busy(gettext("its steps are still being taken back (jobs why says by which job): try again after that"))
    rows = Step.objects.using(using).filter(job__in=jobs.values("pk"))
    others = Step.objects.using(using).filter(job=OuterRef("job"))
    # Only the last failure: the body has caught those before it.
    failed = rows.filter(~Exists(others.filter(done_at__gt=OuterRef("done_at"))), state=FAILED)
    failed.update(state=WAITING, failures=0, done_at=None)
    rows.filter(~Exists(others.filter(pk__gt=OuterRef("pk"))), kind=SLEEP).update(lease=INTERRUPTED)
    # These steps were taken back. If one makes its external call again, that is another call in the ledger.
    cancelled = jobs.filter(state=State.CANCELLED).values("pk")
    undone = Step.objects.using(using).filter(job__in=cancelled, on_cancel__isnull=False, state=DONE)
    undone.update(state=WAITING, result=None, done_at=None, key=Concat("key", Value("again ")))


def forget(job_id: Any, name: str, using: str) -> bool:
    """Let a step be done again by the next run. False: the job runs, or has no such step."""

    def delete() -> bool:
        if Job.objects.using(using).select_for_update().filter(pk=job_id).exclude(state=State.RUNNING).first() is None:
            return False
        return bool(Step.objects.using(using).filter(job=job_id, name=name).delete()[0])

    return databases.again_if_moved(using, delete)
