"""Several bodies in one transaction, with one fenced completion for all of them.

Either the whole group is committed, or nothing of it. In the second case its jobs run one by one, each as if there were
no group: retries, failures, time limits and lost leases are decided there, and nowhere else. So signals, log lines and
events of a job are sent after the commit.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any

from django.db import connections, transaction

from jobs import extensions, store
from jobs.calling import request
from jobs.calling.outbox import AfterCommit
from jobs.conf import sentry
from jobs.conf.logs import log
from jobs.conf.syncpoints import reach
from jobs.contrib.grouped.savepoints import Alone, none_sent
from jobs.errors import LostLease
from jobs.execution import finish, pipeline, tracer
from jobs.lifecycle import transitions
from jobs.lifecycle.run import Run, current
from jobs.models.values import decoded, jsonable
from jobs.store import databases

#: Seconds to wait for another run of an idempotency key: other processes wait for the locks of the earlier bodies.
MARKER_WAIT = 0.02


class Member:
    """One body of a group. It has a context of its own, so it sees its own variables until its run is reported."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stored: Any = None
        #: How long the body took, in seconds.
        self.took = 0.0
        #: The exception that one of its hooks raised after the commit.
        self.struck: BaseException | None = None
        self.has_begun = False
        self._context = copy_context()
        self._around = ExitStack()

    def call_body(self) -> None:
        """Call the body. Raises any exception that keeps it from being a part of the group."""
        self._context.run(self._call_body)

    def _call_body(self) -> None:
        run = self.run
        if sentry.MODULE in sys.modules:
            # Without that extension the import fails and the job runs alone, as after any exception here. What is
            # hidden from Sentry is read where a run is entered.
            from jobs.contrib.aio import sentry as scopes

            self._around.enter_context(scopes.around(run))
        with self._entered():
            self._around.enter_context(extensions.around("around", run))
            self.has_begun = True
            tracer.begin(run)
            if "idempotency_key" in run.task.key_templates and pipeline.leave_marker(run, MARKER_WAIT) is not None:
                raise Alone("another job did the same")
            run.request.update(request.given(run.job))
            # A body may change its arguments.
            pipeline.call_body(run, decoded(run.job.args), decoded(run.job.kwargs))
            if run.planned or run.replacement is not None:
                raise Alone("it asked for another run")
            if connections[run.using].needs_rollback:
                raise Alone("it left a transaction behind that cannot be committed")
            pipeline.look_after(run)
            self.stored = None if run.result is None else jsonable(run.result, "the result")
            if any(look(run) is not None for look in extensions.through("completing")):
                raise Alone("something follows it")
            self.took = time.monotonic() - run.began

    def own_hooks(self, hooks: list[Any], first: int) -> None:
        """Run this body's commit hooks as a part of it: an exception in one of them concerns no other body."""
        for place, (sids, function, is_robust) in enumerate(hooks[first:], first):
            # The hook that notifies workers of calls does so for several bodies at once.
            if not isinstance(function, AfterCommit):
                hooks[place] = (sids, partial(self._call_hook, function, is_robust), is_robust)

    def _call_hook(self, function: Callable[[], Any], is_robust: bool) -> None:
        if self.struck is not None:
            # Django, too, calls no further hook after one that raised.
            return
        try:
            self._context.run(self._as_part, function)
        except Exception as exc:
            if is_robust:
                raise
            self.struck = exc

    def _as_part(self, function: Callable[[], Any]) -> None:
        with self._entered():
            function()

    def tell(self, run: Run, share: float) -> None:
        """After the commit: send the signals, log lines and events of a run, from its start to its end.

        Parameters:
            share: this run's part of the group's time, in seconds.
        """
        now = time.monotonic()
        run.began, run.entered = now - self.took, now - share
        self._context.run(self._tell)

    def _tell(self) -> None:
        run = self.run
        tracer.enter(run)
        try:
            before = current.set(run)
            try:
                log(logging.DEBUG, run.job, "started", "started")
                for happened in extensions.through("happened"):
                    happened([run.job], run.using, "started")
                transitions.note_success(run.job, self.stored)
                pipeline.tell(run, None, self.struck)
            finally:
                current.reset(before)
                self._around.close()
            tracer.tell_success(run)
        except Exception as exc:
            finish.let_end(exc)
            log(logging.ERROR, run.job, "ended unexpectedly", "run_broken", exc_info=exc)
            run.told = run.told or exc
            tracer.tell_broken(run, exc)
        finally:
            tracer.end(run)

    def leave(self) -> None:
        """The run was rolled back. If Celery was told of its beginning, it is told of its end."""
        if self.has_begun:
            self._context.run(self._leave)

    def _leave(self) -> None:
        self._around.close()
        self.run.end()
        tracer.enter(self.run)
        tracer.end(self.run)

    def _entered(self) -> Any:
        return _entered(self.run)


class _entered:
    """The run is the current one, for Celery and for us."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        tracer.enter(self._run)
        self._before = current.set(self._run)

    def __exit__(self, *exc: object) -> None:
        current.reset(self._before)
        tracer.leave(self._run)


def run(members: Iterator[Member], using: str) -> tuple[list[Member], BaseException | None]:
    """Call bodies as they come, and commit them; returns the committed ones, or the reason why none was committed.

    An exception that ends this process is raised on.
    """
    done: list[Member] = []
    reached = "body"
    at, connection = store.of(using), connections[using]
    try:
        with at.write_mutex(), transaction.atomic(using=using):
            try:
                at.prepare_body()
                with none_sent(connection):
                    for member in members:
                        done.append(member)
                        first = len(connection.run_on_commit)
                        member.call_body()
                        member.own_hooks(connection.run_on_commit, first)
                reach("before_commit")
                reached = "commit"
                _complete(done, connection, at)
                reach("after_completion")
            except BaseException:
                # Before Django does it, as for a body that runs alone.
                databases.roll_back(using)
                raise
    except BaseException as exc:
        if (shutdown := finish.shutdown_behind(exc)) is not None:
            raise shutdown from None
        # All were committed, or none: the answer to the COMMIT may be lost.
        is_committed = reached == "commit" and not isinstance(exc, LostLease) and finish.is_committed(done[0].run)
        if not is_committed:
            for member in done:
                member.leave()
            databases.tidy(using)
            return [], exc
        for member in done:
            member.struck = exc
    databases.tidy(using)
    return done, None


def _complete(done: Sequence[Member], connection: Any, at: Any) -> None:
    is_synced = any(member.run.task.is_synced for member in done) or bool(connection.run_on_commit)
    rows = [(member.run.job, member.stored, member.took) for member in done]
    if not transitions.succeed_all(rows, is_synced):
        raise LostLease("one of the group is another run's, or was asked to end")
