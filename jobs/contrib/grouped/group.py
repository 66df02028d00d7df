"""Several bodies in one transaction, with one fenced completion of all.

Whatever happens in it, the whole group is committed, or nothing of it. Then its jobs run one by one, each as if there
were no group: a retry, a failure, a time limit and a lost lease are decided there, and nowhere else. So what is told of
a job (signals, log, events) is told after the commit.
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

from jobs import extensions, signals, store
from jobs.calling import request
from jobs.calling.outbox import AfterCommit
from jobs.conf import sentry
from jobs.conf.logs import log
from jobs.conf.syncpoints import reach
from jobs.contrib.grouped.savepoints import Alone, none_sent
from jobs.errors import LostLease
from jobs.execution import finish, pipeline, tracer
from jobs.idempotency.locks import wake_left
from jobs.lifecycle import transitions
from jobs.lifecycle.run import Run, current
from jobs.models.values import decoded, jsonable
from jobs.store import databases

#: Seconds to wait for another run of an idempotency key: others wait for the locks of the bodies before.
MARKER_WAIT = 0.02


class Member:
    """One body of a group. It has a context of its own: of several, each sees its own variables until it is told of."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stored: Any = None
        #: How long the body took, in seconds.
        self.took = 0.0
        #: What a hook of it raised after the commit.
        self.struck: BaseException | None = None
        self.has_begun = False
        self._context = copy_context()
        self._around = ExitStack()

    def call_body(self) -> None:
        """Raises whatever keeps it from being a part of the group."""
        self._context.run(self._call_body)

    def _call_body(self) -> None:
        run = self.run
        if sentry.MODULE in sys.modules:
            # Without that extension it runs alone, as after all that is raised here. What is hidden from Sentry is
            # read where a run is entered.
            from jobs.contrib.aio import sentry as scopes

            self._around.enter_context(scopes.around(run))
        with self._entered():
            self._around.enter_context(extensions.around("around", run))
            self.has_begun = True
            tracer.begin(run)
            if "idempotency_key" in run.task.key_templates and pipeline.leave_marker(run, MARKER_WAIT) is not None:
                raise Alone("another job did the same")
            run.request.update(request.given(run.job))
            # A body may change what it was given.
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
        """Its hooks run as a part of it, and one that raises is no other body's."""
        for place, (sids, function, is_robust) in enumerate(hooks[first:], first):
            # Who notifies of calls does so for several.
            if not isinstance(function, AfterCommit):
                hooks[place] = (sids, partial(self._call_hook, function, is_robust), is_robust)

    def _call_hook(self, function: Callable[[], Any], is_robust: bool) -> None:
        if self.struck is not None:
            # Django as well calls none after one that raised.
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
        """After the commit: all that is told of a run, from its start to its end.

        Parameters:
            share: its part of the time of the group, in seconds.
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
                signals.started.tell(run.job, run.using)
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
        """It was rolled back. Celery hears of the end of what it heard the beginning of."""
        if self.has_begun:
            self._context.run(self._leave)

    def _leave(self) -> None:
        self._around.close()
        wake_left(self.run)
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
    """Call bodies as they come, and commit them; returns those that were committed, or why none was.

    The exception that ends this process passes.
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
                # As of a body that runs alone: before Django does.
                databases.roll_back(using)
                raise
    except BaseException as exc:
        if (shutdown := finish.shutdown_behind(exc)) is not None:
            raise shutdown from None
        # All of them or none: the answer of the COMMIT may be lost.
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
