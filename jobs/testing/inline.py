"""Run what waits in the test's own process, and look at what was enqueued.

It works in ``TestCase``, in ``TransactionTestCase`` and with pytest-django. It needs no broker and no worker. In a
``TestCase`` each body is a savepoint of the test's transaction. A run takes the same path as in a worker: claim, body,
completion, and follow-ups.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery import current_app
from celery.exceptions import Ignore, NotRegistered
from django.db import Error, connections
from django.db.models import Exists, OuterRef
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now
from django.db.transaction import TransactionManagementError
from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]
from django.utils import timezone

from jobs import extensions
from jobs.calling import outbox
from jobs.conf import conf, import_tasks, is_ours, own_tasks
from jobs.contrib.operations import by_hand
from jobs.errors import TaskExited, TaskOutOfMemory
from jobs.lifecycle import transitions
from jobs.lifecycle.claims import Claimer
from jobs.lifecycle.worker_state import worker_state
from jobs.models import CLAIMABLE, WAITING, Job, Node, Pause, State
from jobs.models.columns import ORDER
from jobs.models.values import decoded, normalize
from jobs.store import databases
from jobs.worker.runner import Runner

#: More runs than this without a ``limit`` count as endless.
ENDLESS = 1000

#: How many seconds a job's ``run_at`` may differ from the asserted time.
TOLERANCE = 5.0


class Runs(list[Job]):
    """The jobs that ran, in this order, each as its run left it. A job that was retried is in it twice."""

    @property
    def states(self) -> Counter[str]:
        """How many runs ended in which state: ``succeeded``, ``failed``, ``cancelled``, or ``scheduled``, ``ready``."""
        return Counter(str(job.state) for job in self)


def run_jobs(
    *,
    limit: int | None = None,
    until: datetime.datetime | None = None,
    raises: bool = True,
    schedules: bool | Collection[str] = True,
) -> Runs:
    """Run the jobs that wait, in this process, and their follow-ups, until nothing is due.

    Jobs run in the order of a claim: by priority, then by the time at which they came due. All queues take part, except
    paused ones. Time limits do not apply.

    Parameters:
        limit: stop after so many runs.
        until: let time pass up to this moment. Jobs that are scheduled before it come due, in the order of their time.
            A delay that a body asks for (a retry, a snooze, a countdown) begins at the time at which the body ran.
            Neither the clock of the database nor Python's clock moves.
        raises: raise the exception of the first job that ends ``failed``, at once and unchanged. With False, look at
            the rows instead. A retry is no failure.
        schedules: with ``until``, the schedule also makes its jobs as time passes: ``beat_schedule``,
            ``add_periodic_task()`` and the tasks' ``every=``. False: none of them; a list: only these entries.

    Returns:
        The jobs that ran (:class:`Runs`), without the app's own, such as ``jobs.ended``.

    Raises:
        TransactionManagementError: it is called inside ``transaction.atomic()``. No worker would see these jobs yet.
        celery.exceptions.NotRegistered: the task of a job is not registered here.
        AssertionError: 1000 jobs ran without a ``limit``, and there are still more.
    """
    if until is not None and timezone.is_naive(until):
        raise ValueError(f"run_jobs(until={until!r}): the moment needs a time zone; use django.utils.timezone.now()")
    aliases = _aliases()
    for alias in aliases:
        if databases.in_transaction(alias):
            raise TransactionManagementError(
                "run_jobs() is called inside of transaction.atomic(): what it enqueued is not committed, and no worker "
                "would see it; call run_jobs() after the block"
            )
    ran, count = Runs(), 0
    with _process(aliases, Clock(until, schedules)) as process:
        while (limit is None or count < limit) and (run := process.run_next()) is not None:
            job, exc = run
            count += 1
            if job.task not in own_tasks():
                ran.append(job)
            if raises and exc is not None:
                raise exc
            if limit is None and count == ENDLESS:
                text = f"{ENDLESS} jobs ran, and there are still more: does one enqueue itself? The last was {job}"
                raise AssertionError(f"{text}; run_jobs(limit=...) stops earlier, schedules=[...] leaves others out")
    return ran


class Clock:
    """The time in ``run_jobs()``: no real clock moves. It goes from one moment when jobs come due to the next."""

    def __init__(self, until: datetime.datetime | None, schedules: Collection[str] | bool) -> None:
        #: It passes up to this moment; None: it does not pass. And which schedules make jobs as it does.
        self.until, self.schedules = until, schedules
        #: The time at which the jobs run; None until it is moved.
        self.at: datetime.datetime | None = None
        #: The next moment at which something other than a job comes due, such as a tick of a schedule.
        self.next: datetime.datetime | None = None

    def reaches(self, moment: datetime.datetime) -> bool:
        """Whether it is that late. If not, time passes no further before that moment."""
        if self.at is not None and moment <= self.at:
            return True
        self.next = moment if self.next is None else min(self.next, moment)
        return False


@contextmanager
def _process(aliases: Sequence[str], clock: Clock) -> Iterator[_Process]:
    """Make this process a worker for the length of a block. No trace of it stays."""
    process = _Process(aliases, clock)
    node, worker_state.node = worker_state.node, uuid.uuid4()
    try:
        for alias in aliases:
            Node.objects.using(alias).create(pk=worker_state.node, hostname="tests", pid=os.getpid())
        yield process
    finally:
        for alias in aliases:
            # If the test broke its transaction, it has already raised an exception.
            with suppress(Error):
                Node.objects.using(alias).filter(pk=worker_state.node).delete()
        process.runner.slot.free()
        worker_state.node = node


class _Process:
    def __init__(self, aliases: Sequence[str], clock: Clock) -> None:
        self.aliases, self.clock = aliases, clock
        self.app: Any = current_app._get_current_object()
        if clock.until is not None and clock.schedules:
            import_tasks(self.app)
        self.runner = Runner(self.app, "tests")

    def run_next(self) -> tuple[Job, BaseException | None] | None:
        """Run one job; return it, and the exception if it failed. None: nothing is due."""
        while (job := self._claim()) is None:
            if not self._move_time():
                return None
        using = str(job._state.db)
        known = {**self._times(), (using, job.pk): (None, job.expires_at)}
        raised = self.runner.run_alone(job).told
        try:
            self._put_off(known)
            job = Job.objects.using(using).get(pk=job.pk)
        except Error as exc:
            # The body broke the transaction of the test.
            raise raised or exc from None
        return job, self._failure(job, raised) if job.state == State.FAILED else None

    def _move_time(self) -> bool:
        """Let time pass up to the next moment at which something is due. False: there is none before ``until``."""
        clock = self.clock
        if (until := clock.until) is None:
            return False
        moments = [] if clock.next is None else [clock.next]
        for alias in self.aliases:
            scheduled = Job.objects.using(alias).filter(state=State.SCHEDULED)
            due = scheduled.filter(_OF_OPEN_QUEUES, run_at__lte=until)
            moments += due.order_by("run_at").values_list("run_at", flat=True)[:1]
            # Jobs that expire before that moment are cancelled on the way.
            late = scheduled.filter(expires_at__gt=clock.at or timezone.now(), expires_at__lte=until)
            moments += filter(None, late.order_by("expires_at").values_list("expires_at", flat=True)[:1])
        if not moments:
            return False
        moment = min(moments)
        clock.at = max(moment, clock.at or moment)
        return True

    def _claim(self) -> Job | None:
        at, self.clock.next = self.clock.at, None
        for alias in self.aliases:
            while transitions.expire(alias, conf().BATCH, at) >= conf().BATCH:
                pass
            transitions.sweep_cancellations(alias, conf().BATCH)
            transitions.make_due(alias, conf().BATCH, at=at)
            ready = Job.objects.using(alias).filter(_OF_OPEN_QUEUES, CLAIMABLE)
            first = ready.order_by(*ORDER).only("task", "queue").first()
            if first is None:
                known = self._times()
                if any(idle(self.app, alias, self.clock) for idle in extensions.through("idle")):
                    self._put_off(known)
                    return self._claim()
                continue
            if first.task not in self.app.tasks:
                import_tasks(self.app)
            if not is_ours(self.app.tasks.get(first.task)):
                raise NotRegistered(f"{first.task!r}, which the job {first.pk} calls: import the module of the task")
            # A new claimer begins at the head of the queue.
            for job in Claimer().claim(alias, first.queue, worker_state.node, 1):
                return job
        return None

    def _times(self) -> dict[tuple[str, uuid.UUID], tuple[Any, Any]]:
        """When each waiting job begins and expires. It is needed only once time has been moved."""
        if self.clock.at is None:
            return {}
        found = {}
        for alias in self.aliases:
            waiting = Job.objects.using(alias).filter(state__in=WAITING)
            for pk, run_at, expires_at in waiting.values_list("pk", "run_at", "expires_at"):
                found[alias, pk] = run_at, expires_at
        return found

    def _put_off(self, known: Mapping[tuple[str, uuid.UUID], tuple[Any, Any]]) -> None:
        """Move what the body put off: the delay begins at the time at which the body ran, and not now."""
        at = self.clock.at
        ahead = at - timezone.now() if at else datetime.timedelta()
        if ahead <= datetime.timedelta():
            return
        for (alias, pk), times in self._times().items():
            before = known.get((alias, pk), (None, None))
            named = zip(("run_at", "expires_at"), times, before, strict=True)
            moved = {name: time + ahead for name, time, earlier in named if time and time != earlier}
            if moved:
                by_hand.redirect(pk, alias, moved)

    def _failure(self, job: Job, raised: BaseException | None) -> BaseException:
        if isinstance(raised, TaskExited | TaskOutOfMemory) and raised.__cause__ is not None:
            # Celery cannot report this exception itself.
            return raised.__cause__
        if isinstance(raised, Exception) and not isinstance(raised, Ignore):
            return raised
        from jobs.contrib.results.endings import exception_of

        return exception_of(job.error or {}, self.app.backend)


_OF_OPEN_QUEUES = ~Exists(Pause.objects.filter(pk=OuterRef("queue")))


def _aliases() -> list[str]:
    """The job databases that the test may use."""
    found: list[str] = []
    refusals = []
    for alias in conf().DATABASES:
        try:
            with connections[alias].cursor():
                found.append(alias)
        except DatabaseOperationForbidden as exc:
            refusals.append(exc)
    if refusals and not found:
        raise refusals[-1]
    return found


@contextmanager
def capture_jobs() -> Iterator[list[Job]]:
    """Collect the jobs that a block enqueues, in their order, even if their transaction does not commit.

    The list holds copies; the rows are written as usual. Three kinds of calls make no job: calls of stock tasks, eager
    calls, and calls of a ``unique=`` task if such a job waits already.
    """
    found: list[Job] = []

    def watch(job: Job) -> None:
        if job.task in own_tasks():
            return
        values = {name: _resolved(value) for name, value in job.__dict__.items() if name != "_state"}
        found.append(Job.of(values, job._state.db))

    outbox.watchers.append(watch)
    try:
        yield found
    finally:
        outbox.watchers.remove(watch)


def _resolved(value: Any) -> Any:
    """Replace a time of the database's clock by one of this machine's clock."""
    if isinstance(value, Now):
        return timezone.now()
    if isinstance(value, CombinedExpression):
        return timezone.now() + value.rhs.value  # type: ignore[attr-defined]
    return value


def assert_enqueued(
    task: Any,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    run_at: datetime.datetime | None = None,
    count: int | None = None,
) -> list[Job]:
    """Assert that a job of the task waits. Parameters that are not given are not compared.

    Parameters:
        task: the task, or its name.
        args, kwargs: the arguments, as the call gave them.
        run_at: when it is to run; 5 seconds earlier or later will do.
        count: how many jobs there have to be; None: at least one.

    Returns:
        The jobs, the oldest first.

    Raises:
        AssertionError: shows what waits instead.
    """
    found, what = _look_for(task, args=args, kwargs=kwargs, queue=queue, run_at=run_at)
    if len(found) == count or (count is None and found):
        return found
    wanted = "no job" if count is None else f"{len(found)} jobs and not {count}"
    raise AssertionError(f"{wanted} of {what}. {_what_there_is()}")


def assert_not_enqueued(
    task: Any,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    run_at: datetime.datetime | None = None,
) -> None:
    """Assert that no such job of the task waits. The parameters are those of :func:`assert_enqueued`."""
    found, what = _look_for(task, args=args, kwargs=kwargs, queue=queue, run_at=run_at)
    if found:
        raise AssertionError(f"{len(found)} jobs of {what}. {_what_there_is()}")


def _look_for(task: Any, **given: Any) -> tuple[list[Job], str]:
    """The waiting jobs that match, and a text of what was asked for."""
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"{task!r} is neither a task nor the name of one")
    given = {key: value for key, value in given.items() if value is not None}
    args, kwargs = normalize(given.get("args"), given.get("kwargs"), conf().MAX_ARGS_BYTES)
    values = {"args": args, "kwargs": kwargs, "queue": given.get("queue")}
    found = [
        job
        for job in _jobs(task=name, state__in=WAITING)
        if all(getattr(job, key) == values[key] for key in given.keys() & values.keys())
        and ("run_at" not in given or abs(job.run_at - given["run_at"]).total_seconds() <= TOLERANCE)
    ]
    conditions = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return found, f"{name} with {conditions}" if conditions else name


def _jobs(**wanted: Any) -> list[Job]:
    """The jobs of all databases, the oldest first."""
    return [job for alias in _aliases() for job in Job.objects.using(alias).filter(**wanted).order_by("pk")]


def _what_there_is(most: int = 20) -> str:
    jobs = [job for job in _jobs() if job.task not in own_tasks()]
    waiting = [job for job in jobs if job.state in WAITING]
    text = "These wait:" + "".join(map(_line, waiting[:most])) if waiting else "Nothing waits."
    if len(waiting) > most:
        text += f"\n  and {len(waiting) - most} more"
    over = [job for job in jobs if job.state not in WAITING]
    return text + ("\nThese ran already:" + "".join(map(_line, over[-most:])) if over else "")


def _line(job: Job) -> str:
    args: Iterable[str] = map(repr, decoded(job.args))
    kwargs = (f"{name}={value!r}" for name, value in decoded(job.kwargs).items())
    when = f", {job.state}" + (f" for {job.run_at.isoformat()}" if job.state == State.SCHEDULED else "")
    return f"\n  {job.task}({', '.join([*args, *kwargs])}) in {job.queue!r}{when}"
