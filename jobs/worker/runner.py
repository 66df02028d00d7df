"""A process, or a thread, that claims jobs for itself and runs them, claim by claim."""

import inspect
import logging
import math
import random
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from billiard.compat import mem_rss
from billiard.pool import EX_RECYCLE
from celery.exceptions import SoftTimeLimitExceeded
from django.core.cache import close_caches
from django.db import Error, connections

from jobs import extensions
from jobs.calling import request
from jobs.conf import conf, is_ours
from jobs.conf.logs import log, logger
from jobs.conf.syncpoints import reach
from jobs.execution import finish, pipeline
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.run import Run
from jobs.lifecycle.wakeups import ONE, notify, wakeup
from jobs.lifecycle.worker_state import BODY, BUSY, IDLE, OLD, ProcessState, worker_state
from jobs.models import Job
from jobs.store import databases
from jobs.store.base import Claim
from jobs.worker import executors

#: Seconds that a claim's jobs should take together: no job waits longer behind the first ones. How long a task takes is
#: the moving mean of its runs, in which the last run has this weight.
BATCH_TIME, WEIGHT = 0.05, 0.2

#: Seconds that claims leave out a task that is not known here.
LEFT = 5.0

#: A database and a queue.
Place = tuple[str, str]

#: Seconds between two queries for the queues that have jobs, while the known ones have some. Slow queries are rarer.
AGAIN = 0.05

#: Seconds to wait for a wake-up, at the most; and between two attempts to reach a database that is away.
LONGEST_WAIT, AWAY_PAUSE = 30.0, 0.5

#: The pause after an attempt that hung, in multiples of its length.
HANGS = 4

#: The worker's limits (``--time-limit``, ``--soft-time-limit``) for tasks without their own: hard and soft, seconds.
default_limits: tuple[float | None, float | None] = (None, None)


class Runner:
    """
    Parameters:
        is_wanted: whether a stock task waits for this very process.
        most: end the process after so many jobs (``worker_max_tasks_per_child``); 0: never.
        memory: end the process when it holds more kilobytes than that (``worker_max_memory_per_child``).
    """

    #: The only tasks that it claims; empty: all but those that the process's executors claim.
    only: Sequence[str] = ()
    new_token = staticmethod(claims.new_token)
    #: Wakes other runners of its kind.
    wakeup = wakeup
    #: Runs several jobs of a claim in one transaction, from this index on; returns how many it has finished.
    _run_together: Callable[[list[Job], int, float], int] | None = None

    def __init__(
        self,
        app: Any,
        hostname: str,
        is_wanted: Callable[[], bool] = lambda: False,
        most: int = 0,
        memory: int = 0,
        slot: ProcessState | None = None,
    ) -> None:
        self.app = app
        self.hostname = hostname
        self.slot = slot or worker_state.take()
        #: This process has a stock task.
        self.in_stock = False
        self._is_wanted = is_wanted
        self._most = most
        self._memory = memory
        self._done = 0
        self._claimer = claims.claimer(app)
        self._turn = random.randrange(1 << 16)
        #: The places where the last query found jobs, without those where a claim found none since; the next query.
        self._promising: set[Place] = set()
        self._ask_at = 0.0
        #: For each task, how many seconds a run takes.
        self._means: dict[str, float] = {}
        self._next = 1
        #: How many jobs the last claim asked for.
        self._asked = 0
        #: The tasks that are not known here, and until when claims leave them alone.
        self._unknown: dict[str, float] = {}
        #: The jobs that could not be finished because their database was away.
        self._unfinished: list[Job] = []
        #: For each database that cannot be reached, until when it is left alone.
        self._away: dict[str, float] = {}

    def take(self, woken: bytes = b"") -> list[Job]:
        """Claim; empty: there is nothing to do, or it may not be done.

        A node that could not beat for half of the time after which it is dead claims nothing: another node may be about
        to declare it dead.
        """
        jobs: list[Job] = []
        while not jobs:
            is_silent = worker_state.silence > conf().DEAD_AFTER / 2
            if is_silent or worker_state.is_quiet or worker_state.stopping_for is not None:
                break
            self.slot.rest(BUSY)
            if self._unfinished:
                self._finish_left()
            jobs = self._claim()
            # Wake-ups that came while all processes were busy are answered by one more look, and not by one for each.
            if not jobs and not (woken := self.wakeup.take_all()):
                break
        if not jobs:
            self.slot.rest(IDLE)
            return []
        is_more = len(jobs) == self._asked or self._claimer.may_find_more(jobs)
        if is_more and woken != ONE * len(jobs):
            # Wake another process; not if this one has all jobs that it was woken for: other jobs have their wake-ups.
            self.wakeup.pass_on()
        return jobs

    def run_batch(self, woken: bytes = b"") -> bool:
        """Claim and run; False: there is nothing to do, or it may not be done.

        Parameters:
            woken: the wake-ups that led here.
        """
        if jobs := self.take(woken):
            # As Django does before a request: this process may have been idle for long.
            for other in connections.all(initialized_only=True):
                if other.alias not in conf().DATABASES:
                    other.close_if_unusable_or_obsolete()
            self._run_all(jobs)
            # And after it, as Celery's fixup after each task.
            with suppress(Exception):
                close_caches()
            self._claimer.note_left(jobs)
            self.slot.rest(IDLE)
        else:
            self._next = 1
        if self._most or self._memory:
            self._recycle()
        return bool(jobs)

    def _claim(self) -> list[Job]:
        """Claim from the queues in turn, so that no queue starves."""
        reach("before_claim")
        left = self._most - self._done if self._most else math.inf
        self._asked = claims.size_of(min(self._next, conf().CLAIM_BATCH, left))
        without = tuple(task for task, until in self._unknown.items() if time.monotonic() < until)
        if not self.only:
            without += tuple(task for each in executors.present for task in each.tasks)
        for turn, (using, queue) in self._in_turn(worker_state.queues):
            if time.monotonic() < self._away.get(using, 0.0):
                continue
            # Write the token first: if the process dies in the claim, its rows go back at once, and count nothing.
            claim = Claim(queue, worker_state.node, self._asked, self.new_token(), without, only=self.only)
            self.slot.rest(BUSY, claim.token)
            began = time.monotonic()
            try:
                jobs = self._claimer.take(using, claim)
            except Exception as exc:
                self._note_away(using, exc, time.monotonic() - began)
                if not isinstance(exc, Error):
                    # Rows may be claimed (no memory was left for them, say), and none was begun.
                    with suppress(Error):
                        transitions.hand_back_claim(using, worker_state.node, claim.token)
                continue
            self._away.pop(using, None)
            if jobs:
                self._turn = turn + 1
                return jobs
        return []

    def _in_turn(self, queues: Sequence[str]) -> Iterator[tuple[int, Place]]:
        """Where a claim may find jobs, each with its turn. If there are several queues, it queries which have any.

        It uses the answer only while claims find jobs there, and only for a short time.
        """
        places = [(using, queue) for using in conf().DATABASES for queue in queues]
        is_asked = len(queues) < 2
        if is_asked:
            self._promising = set(places)
        while True:
            if not is_asked and (not self._promising or time.monotonic() >= self._ask_at):
                self._ask(queues)
                is_asked = True
            for turn in range(self._turn, self._turn + len(places)):
                place = places[turn % len(places)]
                if place in self._promising:
                    yield turn, place
                    self._promising.discard(place)
            if is_asked:
                return
            self._promising.clear()

    def _ask(self, queues: Sequence[str]) -> None:
        began, self._promising = time.monotonic(), set()
        for using in conf().DATABASES:
            if began < self._away.get(using, 0.0):
                continue
            asked = time.monotonic()
            try:
                self._promising.update((using, queue) for queue in self._claimer.promising(using, queues))
                self._away.pop(using, None)
            except Exception as exc:
                self._note_away(using, exc, time.monotonic() - asked)
        now = time.monotonic()
        self._ask_at = now + max(AGAIN, min(claims.RARELY * (now - began), claims.LOOK))

    def _note_away(self, using: str, exc: Exception, took: float = 0.0) -> None:
        """A database cannot be read: leave it alone for a moment, and go on with the other databases.

        One that hangs is left alone for longer: an attempt that ``took`` ten seconds held up their jobs.
        """
        if isinstance(exc, Error):
            databases.note_away(exc, using)
        else:
            databases.note_failure(exc, "a claim", worker_state.about("claim_failed"))
            # A body may have left a session whose rows the driver cannot read.
            databases.drop(using)
        self._away[using] = time.monotonic() + max(AWAY_PAUSE, min(HANGS * took, LONGEST_WAIT))

    def _run_all(self, jobs: list[Job]) -> None:
        claimed_at = time.monotonic()
        batch = jobs[0].token or 0
        used, index = 0.0, 0
        while index < len(jobs):
            job = jobs[index]
            if index and (worker_state.stopping_for is not None or worker_state.stock_waits or self._is_wanted()):
                self._hand_back_rest(job, batch)
                return
            if self._run_together is not None and (done := self._run_together(jobs, index, claimed_at)):
                index += done
                self.slot.rest(BUSY, batch if index < len(jobs) else 0)
                continue
            index += 1
            waiting = jobs[index:]
            task = self.app.tasks.get(job.task) or self._find(job)
            if not is_ours(task):
                self._postpone(job)
                continue
            mean = self._means.get(job.task)
            has_harmed = job.crashes or job.node_losses
            if waiting and (has_harmed or mean is None or used + mean > BATCH_TIME):
                # A run of it was lost, or its length is unknown or too large: no job may wait behind it.
                if self._hand_back_rest(job, batch, begun=job.pk):
                    waiting = []
                else:
                    # Perhaps they were given back, and only the answer got lost: each is renewed before it runs.
                    claimed_at = -math.inf
            used += mean or 0.0
            if (error := self._run(task, job, batch if waiting else 0, claimed_at).told) is not None:
                let_go(error)
            self.slot.rest(BUSY, batch if waiting else 0)
            if not waiting:
                return

    def _find(self, job: Job) -> Any:
        """The task of a job that is not registered here, if an extension finds it."""
        try:
            return next(filter(None, (find(job) for find in extensions.through("find"))), None)
        except Exception as exc:
            log(logging.WARNING, job, f"cannot be imported: {exc!r}", "import_failed")
            return None

    def _hand_back_rest(self, job: Job, batch: int, begun: uuid.UUID | None = None) -> bool:
        """Give the rest of a claim back, for any free process. False: the database refused; the supervisor does it."""
        try:
            transitions.hand_back_claim(str(job._state.db), worker_state.node, batch, begun)
        except Error:
            return False
        if worker_state.stopping_for is None:
            self.wakeup.pass_on()
        return True

    def run_alone(self, job: Job) -> Run:
        """Run one claimed job whose task is known."""
        return self._run(self.app.tasks[job.task], job, 0, time.monotonic())

    def _run(self, task: Any, job: Job, batch: int, claimed_at: float) -> Run:
        run = Run(task, job, str(job._state.db), self.slot)
        try:
            self._name(run, batch)
        except Exception as exc:
            # A person edited the row by hand.
            self._finish_unbegun(run, exc)
            return run
        # What cannot roll back must not run under a claim that a crash of the database may forget.
        is_safe = (task.atomic or task.is_fenced) and task.holding is None
        if (not is_safe or time.monotonic() - claimed_at > OLD) and not self._renew(job):
            return run
        self._go(run, pipeline.run)
        return run

    def _go(self, run: Run, go: Callable[[Run], Any]) -> None:
        """Run it, with what comes before and after in this process."""
        if tells := worker_state.wants_events:
            self._tell_events("send_start", run)
        go(run)
        took = time.monotonic() - run.entered
        if isinstance(run.told, finish.NotSettled):
            self._unfinished.append(run.job)
        if tells:
            self._tell_events("send_outcome", run, took)
        if run.task.run_over is not None:
            run.task.run_over(run.job)
        self._done += 1
        self._learn(run.job.task, took, run.told)

    def _tell_events(self, what: str, run: Run, *more: Any) -> None:
        """Events are only news: an error with one (its value cannot be shown, say) does not end the process."""
        try:
            for tells in extensions.through("tells"):
                getattr(tells, what)(run, *more)
        except Exception as exc:
            log(logging.WARNING, run.job, f"no event tells of it: {exc!r}", "event_lost")

    def _name(self, run: Run, batch: int) -> None:
        """Make the request, and write to the worker state which job runs, and until when.

        Race: the supervisor gives back what waits behind a long body. So write first, and then look at the time.
        """
        job = run.job
        if not isinstance(job.kwargs, dict):
            raise TypeError(f"the keyword arguments are no dict, but {job.kwargs!r}")
        run.request = request.make(job, run.task, self.app, self.hostname, run)
        hard, soft = (own or default for own, default in zip(run.request.timelimit, default_limits, strict=True))
        if hard and soft and soft > hard:
            soft = None
        # What ``inspect active`` shows.
        about = {"id": str(job.pk), "name": job.task, "queue": job.queue, "time": time.time()}
        shown = run.request.argsrepr, run.request.kwargsrepr
        whole = (job.args, job.kwargs) if extensions.instead(request.seen)(job) is job else shown
        for args, kwargs in (whole, (shown[0][:200], shown[1][:200]), ("...", "...")):
            text = repr({**about, "args": args, "kwargs": kwargs}).encode()
            # For values that are not JSON the texts say more than the row.
            if len(text) <= 1000 and b"__type__" not in text:
                break
        run.slot.name(job.pk, job.lease, job.token or 0, batch, soft, hard, text)

    def _finish_unbegun(self, run: Run, exc: Exception) -> None:
        """Finish a claimed row from which no request can be made."""
        try:
            finish.finish(run, exc)
        except finish.NotSettled:
            self._unfinished.append(run.job)
        except Exception as told:
            # It raises what Celery would be told; Celery does not know of this run.
            log(logging.DEBUG, run.job, f"was not begun: {told!r}", "not_begun")
            run.told = told

    def _renew(self, job: Job) -> bool:
        try:
            if not claims.renew(job):
                return False
        except Error as exc:
            self._note_away(str(job._state.db), exc)
            return False
        self.slot.retoken(job.token or 0)
        return True

    def _learn(self, task: str, took: float, error: BaseException | None) -> None:
        if error is not None:
            # A task that fails may hang the next time: its next run goes alone.
            self._means.pop(task, None)
            self._next = 1
            return
        mean = self._means.get(task, took)
        mean = self._means[task] = mean + WEIGHT * (took - mean)
        self._next = max(1, int(BATCH_TIME / max(mean, 1e-5)))

    def _postpone(self, job: Job) -> None:
        with suppress(Error):
            if any(put_aside(job) for put_aside in extensions.through("put_aside")):
                return
            # The next claims leave such jobs to another worker.
            self._unknown[job.task] = time.monotonic() + LEFT
            if transitions.hand_back(job, 0):
                notify(str(job._state.db), [job.queue])

    def _finish_left(self) -> None:
        """Runs that found no database at their end are over: their jobs wait again, now that there is one."""
        for job in list(self._unfinished):
            error = transitions.error_entry("DatabaseLost", "there was no database to finish it", attempt=job.lease)
            try:
                transitions.lose(job, error, conf().MAX_NODE_LOSSES)
            except Error as exc:
                using = str(job._state.db)
                is_away = databases.is_lost(exc, using)
                self._note_away(using, exc)
                if is_away:
                    return
                # The database refuses this row. The supervisor gives it back, as one that no process has.
            self._unfinished.remove(job)

    @property
    def patience(self) -> float:
        """Seconds to wait for a wake-up: not long while a database is away, or until a rate lets the next job start."""
        return min(AWAY_PAUSE if self._unfinished or self._away else LONGEST_WAIT, self._claimer.patience)

    def _recycle(self) -> None:
        """As Celery's pool does after a task: end the process that has done its share, or holds too much memory."""
        done = self._done + sum(each.done for each in executors.present)
        if not done:
            # A process that holds too much memory from the start runs one job all the same.
            return
        has_done = 0 < self._most <= done
        used = mem_rss() if self._memory and not has_done else 0
        # The executors' jobs come to their end first.
        if not has_done and used <= self._memory:
            return
        are_over = [each.retire() for each in executors.present]
        if all(are_over):
            if not has_done:
                text = "a process holds %s kB, more than its %s, and is replaced"
                logger.warning(text, used, self._memory, extra=worker_state.about("recycled"))
            sys.exit(EX_RECYCLE)

    def catch_soft_limits(self) -> None:
        """Let the supervisor's signal strike in a body that is over its limit, and in a stock task; nowhere else."""
        stock: Any = signal.getsignal(signal.SIGUSR1)

        def strike(number: int, frame: Any) -> None:
            if self.slot.phase == BODY and 0 < self.slot.soft_at <= time.monotonic():
                self.slot.soft_at = 0.0
                raise SoftTimeLimitExceeded()
            if self.in_stock and callable(stock):
                stock(number, frame)

        signal.signal(signal.SIGUSR1, strike)


#: The flags of the code of coroutines and generators.
_SUSPENDS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def let_go(error: BaseException) -> None:
    """Empty the frames of a run that raised: else what its body held would live until Python collects garbage.

    Race: a server-side cursor (``iterator()``) would be closed then, in a later job's transaction, and break it.
    """
    causes = [error, *filter(None, [error.__cause__])]
    for each in (each for cause in causes for each in finish.chain(cause)):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_flags & _SUSPENDS:
                # The frame may be another body's, which goes on later: two bodies can meet one exception.
                continue
            with suppress(RuntimeError):
                frame.clear()
                # Celery has read ``f_locals``, and up to Python 3.12 a frame keeps the values until the next read.
                frame.f_locals  # noqa: B018
