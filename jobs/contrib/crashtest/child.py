"""A child process of the test. It plays a worker on copies of the databases, and can be killed like one."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from celery import current_app
from celery.backends.base import DisabledBackend
from django.conf import settings
from django.db import connections
from django.db.models import Max
from django.test.utils import override_settings
from django.utils import timezone

from jobs.conf import conf, reads_rows
from jobs.contrib.copies.copies import use
from jobs.contrib.copies.store import Copy
from jobs.contrib.crashtest.recorder import CLIENTS, Operation, Recorder
from jobs.lifecycle.transitions import NEVER
from jobs.lifecycle.worker_state import WorkerState, worker_state
from jobs.maintenance import rescue
from jobs.models import AWAITING, LIVE, Job, Node, Pause
from jobs.store import databases
from jobs.testing.inline import run_jobs

#: Jobs that are put off for longer are not run. Retries and snoozes come before that.
HORIZON = datetime.timedelta(hours=1)
#: After this many runs, or seconds, we say that the task never ends.
RUNS, PATIENCE = 100, 60.0
#: Signals that end a process at once. The process that made the copies has to remove them first.
ENDS = (signal.SIGTERM, signal.SIGHUP)


class Broken(RuntimeError):
    """A child could not do its work. This says nothing about the task."""


class Child:
    """A child process, as its parent sees it."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid, self._pipe = pid, pipe
        self._noted: dict[int, Operation] = {}
        #: Whether it waits until :meth:`go`, and whether it has ended.
        self.is_waiting = self.is_over = False
        #: What its work returned, and the traceback if it raised.
        self.answer: Any = None
        self.error = ""
        #: Modules of ours that its work has needed.
        self.imported: list[str] = []

    @property
    def operations(self) -> list[Operation]:
        """What it did. They are complete even if it was killed."""
        return list(self._noted.values())

    def look(self, timeout: float) -> bool:
        """Wait for so many seconds at the most; return whether it waits or has ended. Raises :class:`Broken`."""
        deadline = time.monotonic() + timeout
        while not (self.is_waiting or self.is_over) and self._pipe.poll(max(0, deadline - time.monotonic())):
            try:
                self._hear(self._pipe.recv())
            except (EOFError, ConnectionError):
                self.is_over = True
                os.waitpid(self.pid, 0)
                if self.error:
                    raise Broken(f"a child of the test failed:\n{self.error}") from None
        return self.is_waiting or self.is_over

    def _hear(self, said: Any) -> None:
        if isinstance(said, Operation):
            self._noted[said.number] = said
        else:
            vars(self).update(said)

    def go(self) -> None:
        self.is_waiting = False
        self._pipe.send_bytes(b".")

    def end(self) -> None:
        if not self.is_over:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._pipe.close()


class Children:
    """Runs on the copies. Their caches are files of the directory; where it is sealed, no mail or request leaves."""

    def __init__(self, copies: Sequence[Copy], directory: Path, is_sealed: bool) -> None:
        self.copies, self.is_sealed = copies, is_sealed
        self.caches = directory / "caches"
        app: Any = current_app._get_current_object()
        # Each child would look for it among all packages that are installed.
        self._backend = app.backend if reads_rows(app) else None
        if is_sealed:
            # They also refuse if a body imports them later.
            for module, *_ in CLIENTS:
                with suppress(ImportError):
                    import_module(module)

    def restore(self) -> None:
        shutil.rmtree(self.caches, ignore_errors=True)
        for copy in self.copies:
            copy.restore()

    def do(self, work: Callable[[], Any], **recorded: Any) -> Child:
        """Do some work in a child, and wait for the end of the child. It may kill itself. Raises :class:`Broken`."""
        child = self.start(work, **recorded)
        try:
            if not child.look(PATIENCE):
                raise Broken(f"a run did not end within {PATIENCE:g} s")
        finally:
            # Even if this process is interrupted: a run must not outlive its copy.
            child.end()
        for name in child.imported:
            # Else each child that comes would do it again.
            import_module(name)
        return child

    def start(self, work: Callable[[], Any], name: str = "jobs-crashtest", **recorded: Any) -> Child:
        """Begin some work in a child. ``name``: of its connections to PostgreSQL; the rest: as of a ``Recorder``."""
        connections.close_all()
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            # Python warns that threads of the test do not exist in the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            if pid := os.fork():
                theirs.close()
                return Child(pid, ours)
        try:
            ours.close()
            recorder = Recorder(theirs, self.is_sealed, **recorded)
            try:
                self._become_a_worker(name)
                recorder.install()
                answer = work()
                imported = [name for name in sys.modules if name.startswith("jobs.")]
                recorder.tell({"answer": answer, "imported": imported})
            except BaseException:
                recorder.tell({"error": traceback.format_exc()})
        finally:
            os._exit(0)

    def _become_a_worker(self, name: str) -> None:
        """Become a worker. Nothing that this process does may reach its parent."""
        # A garbage collection would copy all memory of the parent.
        gc.freeze()
        for number in (signal.SIGINT, *ENDS):
            signal.signal(number, signal.SIG_DFL)
        logging.disable(logging.CRITICAL)
        os.environ["PGAPPNAME"] = name
        # In place, because other modules have imported this object.
        vars(worker_state).update(vars(WorkerState()))
        for connection in connections.all(initialized_only=True):
            # It is not closed: a database in memory belongs to the parent.
            connection.connection = None
        use(self.copies)
        app: Any = current_app._get_current_object()
        app.conf.task_always_eager = False
        if not reads_rows(app):
            app._local.backend = DisabledBackend(app=app)
        # A change of another cache would be seen by others, and could not be undone.
        files = "django.core.cache.backends.filebased.FileBasedCache"
        caches = {
            alias: given
            if given["BACKEND"].endswith("DummyCache")
            else {"BACKEND": files, "LOCATION": self.caches / alias}
            for alias, given in settings.CACHES.items()
        }
        override_settings(CACHES=caches).enable()
        if self.is_sealed:
            settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
            app.conf.broker_url = "memory://"


# What a child does


def forget_others() -> None:
    """Remove all other jobs, pauses and workers from the copy."""
    for rows in (Job.objects.filter(state__in=LIVE), Pause.objects.all(), Node.objects.all()):
        for part in databases.each(rows):
            part.delete()


def enqueue(task: Any, args: Any, kwargs: Any) -> str:
    """Enqueue the job, even if one with the same ``unique=`` key waits: that one counts as begun."""
    for alias in conf().DATABASES:
        Job.objects.using(alias).filter(state__in=LIVE).update(unique_key=None)
    return str(task.apply_async(args, kwargs).id)


def run_all(limit: int = RUNS) -> int:
    """Run what is due, and what follows, at most so many jobs; return how many. The schedule makes no jobs."""
    until, done = timezone.now() + HORIZON, 0
    while until is not None and done < limit:
        done += len(run_jobs(until=until, raises=False, limit=limit - done, schedules=False))
        # A body that waits goes on in its time, however late that is.
        until = Job.objects.filter(AWAITING, run_at__gt=until, run_at__lt=NEVER).aggregate(last=Max("run_at"))["last"]
    return done


def run_whole() -> None:
    run_all()
    if run_all(1):
        raise Broken(f"{RUNS} jobs ran, and there are still more: does one enqueue itself?")


def go_on() -> None:
    """Give back the jobs of killed runs, as the maintenance of a worker does, and run them."""
    for rows in databases.each(Node.objects.filter(dead_at=None)):
        for node in rows.values_list("pk", flat=True):
            rescue.bury(node)
    for alias in conf().DATABASES:
        rescue.rescue_all(alias)
    run_all()
