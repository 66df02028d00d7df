"""Starts the supervisor of a worker, starts it again if it dies before the worker, and sends it notes.

The watchdog is a process that does nothing else. It ends when the worker's main process does: it reads EOF from its
pipe. The signals that stop a worker are sent to its whole group. They are ignored here and in the supervisor, so that a
long warm shutdown is not taken for a death.
"""

import atexit
import json
import os
import select
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import connections

from jobs import extensions
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import worker_state
from jobs.store.identity import NotAdopted
from jobs.worker.supervisor import LAST_WAIT, REGISTERED, Supervisor

#: Seconds that the rest of the main process's end may take.
LAST_ALARM = 5

#: Seconds between two looks at a supervisor that is stopped.
STOPPED_LOOK = 0.1


class Handle:
    """The handle of the worker's main process on its supervisor; without one (outside of a worker) it does nothing."""

    #: The watchdog's pid; the pipe to the supervisor; the pipe on which it says that it is ready, or why it ended (-1:
    #: not this process's).
    _pid, _pipe, _ready = 0, -1, -1

    #: The exit status of the worker's main process, if its end hangs.
    status = 0

    def start(self, queues: list[str], **node: Any) -> None:
        """Fork the watchdog of a worker; ``node`` has columns of the worker's ``Node`` row.

        Call it before anything else in this process forks or holds a connection.
        """
        worker_state.node = uuid.uuid4()
        worker_state.wipe()
        worker_state.queues = queues
        connections.close_all()
        main = os.getpid()
        pipe, self._pipe = os.pipe()
        self._ready, ready = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._close_in_child()
                _supervise(main, node, pipe, ready)
            finally:
                os._exit(0)
        os.close(pipe)
        os.close(ready)
        # A hanging supervisor must not hang the worker; a note is shorter than PIPE_BUF: it is written whole or not.
        os.set_blocking(self._pipe, False)
        # A pool child that kept the pipe open would hide the main process's death.
        os.register_at_fork(after_in_child=self._close_in_child)
        atexit.register(self._end)

    def wait_until_registered(self, timeout: float) -> bool:
        """Wait until the node is in the database, so that its children may claim.

        Raises:
            NotAdopted: the database is a copy of another one; the supervisor has ended.
        """
        if not select.select([self._ready], [], [], timeout)[0]:
            return False
        said = self._read()
        if reason := said.lstrip(REGISTERED):
            raise NotAdopted(reason.decode(errors="replace"))
        # Race: a process that is killed closes its pipes first, and is dead a moment later.
        return bool(said) and self.is_alive()

    def last_words(self) -> str:
        """Why the supervisor ended, or is about to; empty if it did not say."""
        return self._read().lstrip(REGISTERED).decode(errors="replace")

    def _read(self) -> bytes:
        os.set_blocking(self._ready, False)
        try:
            return os.read(self._ready, 1 << 16)
        except BlockingIOError:
            return b""

    def is_alive(self) -> bool:
        """Whether the watchdog is there; asked by the worker's main process, its parent."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            return False

    def do(self, function: Callable[..., Any], *given: Any, is_urgent: bool = False) -> None:
        """Have a function of a module called in the supervisor, with values of JSON. It never raises.

        It waits for a second at the most, if the supervisor does not read.

        Parameters:
            is_urgent: call it at once, before waiting notes; such a function makes no query.
        """
        note = json.dumps([is_urgent, f"{function.__module__}.{function.__qualname__}", *given])
        # An earlier note may have been cut.
        left, until = f"\n{note}\n".encode(), time.monotonic() + 1.0
        try:
            while left and self._pipe >= 0:
                with suppress(BlockingIOError):
                    left = left[os.write(self._pipe, left) :]
                if left and not select.select([], [self._pipe], [], until - time.monotonic())[1]:
                    raise TimeoutError("it does not read")
        except (OSError, ValueError):
            # ValueError: no time is left.
            logger.warning("the supervisor takes no note", exc_info=True, extra=worker_state.about("note_lost"))

    def _end(self) -> None:
        """At the end of the worker's main process: give the supervisor a moment to hand back and sign off.

        What follows is billiard's: it joins a pool process that was started during the stop, without a bound.
        """
        if self._pipe < 0:
            return
        os.close(self._pipe)
        self._pipe = -1
        # Threads in their bodies end with this process, and the supervisor gives their jobs back then.
        if not any(slot.pid == os.getpid() for slot in worker_state.at_work()):
            deadline = time.monotonic() + LAST_WAIT + 2
            while time.monotonic() < deadline and self.is_alive():
                time.sleep(0.02)
        signal.signal(signal.SIGALRM, lambda *args: os._exit(self.status))
        signal.alarm(LAST_ALARM)

    def _close_in_child(self) -> None:
        if self._pipe >= 0:
            with suppress(OSError):
                os.close(self._pipe)
                os.close(self._ready)
            self._pipe = -1


supervisor = Handle()


def _supervise(main: int, node: dict[str, Any], pipe: int, ready: int) -> None:
    for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        child = os.fork()
        if child == 0:
            try:
                extensions.instead(Supervisor)(main, node, pipe, ready).main()
            except NotAdopted as exc:
                # End at once: the database is not ours, so the supervisor does not even sign off there.
                os.write(ready, str(exc).encode()[: select.PIPE_BUF])
                os._exit(0)
            except BaseException:
                logger.exception("the supervisor failed", extra=worker_state.about("supervisor_failed"))
                os._exit(1)
            os._exit(0)
        if _ended(child) == 0:
            return
        logger.error("the supervisor died and is started again", extra=worker_state.about("supervisor_restarted"))
        # EOF means that the worker is gone as well; a new supervisor then only signs off.
        select.select([pipe], [], [], 0.5)


def _ended(child: int) -> int:
    """Wait for its end; returns the status. One that stays stopped (``SIGSTOP``) is killed: it does not beat."""
    while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
        # Looks are counted, and not seconds: this process may have been stopped as well.
        for _ in range(round(conf().DEAD_AFTER / STOPPED_LOOK)):
            time.sleep(STOPPED_LOOK)
            if os.waitid(os.P_PID, child, os.WCONTINUED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
        else:
            logger.error("the supervisor stays stopped", extra=worker_state.about("supervisor_stopped"))
            os.kill(child, signal.SIGKILL)
    return status
