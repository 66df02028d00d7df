"""A child of the test that plays a worker on copies of the databases: it can be killed like one."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from celery import current_app
from celery.backends.base import DisabledBackend
from django.conf import settings
from django.db import connections
from django.test.signals import clear_cache_handlers
from django.utils import timezone

from jobs.conf import conf, reads_rows
from jobs.lifecycle.board import Board, board
from jobs.maintenance import rescue
from jobs.models import LIVE, Job, Node, Pause
from jobs.testing.copies import Copy
from jobs.testing.events import Recorder, import_clients
from jobs.testing.inline import run_jobs

#: What is put off for longer is not run: retries and snoozes come before that.
HORIZON = datetime.timedelta(hours=1)

#: So many runs, and seconds, mean that it never ends.
RUNS, PATIENCE = 100, 60.0


#: Signals that end a process without a word. The one that makes copies has to remove them first.
ENDS = (signal.SIGTERM, signal.SIGHUP)


class Broken(RuntimeError):
    """A child could not do its work: neither the task's fault nor its merit."""


class Children:
    """
    Parameters:
        directory: for what they leave behind.
        is_sealed: no mail and no HTTP request leaves them.
    """

    def __init__(self, copies: Sequence[Copy], directory: Path, is_sealed: bool) -> None:
        self.copies, self.directory, self.is_sealed = copies, directory, is_sealed
        self.caches = directory / "caches"
        if is_sealed:
            import_clients()

    def restore(self) -> None:
        self.caches.unlink(missing_ok=True)
        for copy in self.copies:
            copy.restore()

    def recorder(self, name: str, **given: Any) -> Recorder:
        return Recorder(self.log(name), self.caches, is_sealed=self.is_sealed, **given)

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.events"

    def start(self, work: Callable[[], None], name: str = "child") -> int:
        """Do it in a child; returns its process id."""
        connections.close_all()
        with warnings.catch_warnings():
            # Of threads that the test has, and that are not in the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            if pid := os.fork():
                return pid
        code = 1
        try:
            self._settle_in(name)
            work()
            code = 0
        except BaseException:
            (self.directory / f"{name}.error").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def wait(self, pid: int, name: str = "child") -> bool:
        """Wait for its end; False: it was killed. Raises :class:`Broken`."""
        deadline = time.monotonic() + PATIENCE
        pause = 0.0005
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            try:
                if time.monotonic() > deadline:
                    raise Broken(f"a run did not end within {PATIENCE:g} s")
                time.sleep(pause)
            except BaseException:
                # Also if this process is interrupted: a run must not outlive its copy.
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
            pause = min(0.005, pause * 1.5)
        if os.WIFSIGNALED(ended[1]):
            return False
        if ended[1]:
            raise Broken(f"a child of the test failed:\n{(self.directory / f'{name}.error').read_text()}")
        return True

    def do(self, work: Callable[[], None]) -> bool:
        return self.wait(self.start(work))

    def _settle_in(self, name: str) -> None:
        """This process is new, and a worker: nothing that it does may reach the one that made it."""
        # A collection would copy all memory of the parent.
        gc.freeze()
        for number in (signal.SIGINT, *ENDS):
            signal.signal(number, signal.SIG_DFL)
        logging.disable(logging.CRITICAL)
        os.environ["PGAPPNAME"] = application(name)
        # In place: whoever has imported it has this one.
        vars(board).update(vars(Board()))
        for connection in connections.all(initialized_only=True):
            # Not closed: a database in memory is the parent's.
            connection.connection = None
        for copy in self.copies:
            copy.use()
        app: Any = current_app._get_current_object()
        app.conf.task_always_eager = False
        if not reads_rows(app):
            app._local.backend = DisabledBackend(app=app)
        _use_memory()
        if self.is_sealed:
            settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
            app.conf.broker_url = "memory://"


def application(name: str) -> str:
    """By which PostgreSQL knows the connections of a child."""
    return f"jobs-crashtest-{name}"


def _use_memory() -> None:
    """Caches elsewhere would be changed for others as well, and could not be taken back."""
    kinds = ("locmem.LocMemCache", "dummy.DummyCache")
    memory = "django.core.cache.backends.locmem.LocMemCache"
    settings.CACHES = {
        alias: given if given["BACKEND"].endswith(kinds) else {"BACKEND": memory, "LOCATION": f"crashtest-{alias}"}
        for alias, given in settings.CACHES.items()
    }
    clear_cache_handlers(setting="CACHES")


# What a child does


def forget_others() -> None:
    """No other job waits or runs in the copy, and no worker is there."""
    for alias in conf().DATABASES:
        Job.objects.using(alias).filter(state__in=LIVE).delete()
        Pause.objects.using(alias).all().delete()
        Node.objects.using(alias).all().delete()


def enqueue(task: Any, args: Any, kwargs: Any, answer: Path) -> None:
    """What is asked for runs also beside one that waits: the key of ``unique=`` is free once a job has begun."""
    for alias in conf().DATABASES:
        Job.objects.using(alias).filter(state__in=LIVE).update(unique_key=None)
    result = task.apply_async(args, kwargs)
    answer.write_text(str(result.id))


def run_all() -> None:
    """Run what is due, and what follows, until nothing is left, or for so many runs. The project's schedule rests."""
    run_jobs(until=timezone.now() + HORIZON, raises=False, limit=RUNS, schedules=False)


def run_whole() -> None:
    run_all()
    if run_jobs(until=timezone.now() + HORIZON, raises=False, limit=1, schedules=False):
        raise Broken(f"{RUNS} jobs ran, and there are still more: does one enqueue itself?")


def run_one() -> None:
    run_jobs(limit=1, raises=False)


def rescue_all() -> None:
    """What the dead left: as the maintenance of a worker does it."""
    for alias in conf().DATABASES:
        for node in Node.objects.using(alias).filter(dead_at=None).values_list("pk", flat=True):
            rescue.bury(node)
    for alias in conf().DATABASES:
        rescue.give_back_all(alias)
