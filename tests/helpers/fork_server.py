"""A process that has imported Celery and Django. A worker that it forks starts with two thirds of the processor time.

A fork gets its environment and arguments before it imports the project, as a new interpreter does. It also ends as one:
the fork server of ``multiprocessing`` ends its children by ``os._exit()``, which leaves out a worker's last steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.servers import die_with_parent

#: What every worker imports, without this project and without what reads a setting.
IMPORTED = (
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.worker.consumer",
    "django.contrib.admin.options",
    "django.contrib.admin.sites",
    "django.contrib.sessions.backends.db",
    "django.core.mail.backends.smtp",
    "django.core.management.commands.check",
    "django.db.backends.sqlite3.base",
    "django.forms",
    "django.test.client",
    "django.views.debug",
    "django.views.i18n",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "pydantic",
)
#: The most bytes of a message to the fork server, or from it. An environment has fewer.
LONGEST = 1 << 17
PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).resolve().parents[2]
#: The environment variables of the interpreter itself.
START = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


class Forked:
    """A process that the fork server forked. It has the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit status (negative: the signal that killed it).

        Raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds.
        """
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


#: A worker's main process.
Process = subprocess.Popen[bytes] | Forked


class Server:
    """The fork server as the test process sees it. The fork server dies with the test process."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = die_with_parent(sys.executable, "-m", __name__, str(other.fileno()))
        env = {**os.environ, **START}
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()], env=env, cwd=ROOT, start_new_session=True)
        other.close()
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def start(self, argv: Sequence[str], log: Path, env: dict[str, str]) -> Forked:
        """Run ``python -m argv...`` in a session of its own. Its output is appended to the log."""
        with self._lock:
            self._socket.send(json.dumps([list(argv), str(log), env]).encode())
            while (pid := self._read().get("pid")) is None:
                pass
        return Forked(self, pid)

    def ended(self, pid: int) -> int | None:
        with self._lock:
            while True:
                if pid in self._codes:
                    return self._codes[pid]
                try:
                    self._read(socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return None

    def _read(self, flags: int = 0) -> dict[str, int]:
        said = self._socket.recv(LONGEST, flags)
        if not said:
            raise RuntimeError(f"the fork server ended: {self._process.wait()}")
        told: dict[str, int] = json.loads(said)
        if "ended" in told:
            self._codes[told["ended"]] = told["code"]
        else:
            # An earlier process may have had the same pid.
            self._codes.pop(told["pid"], None)
        return told


@functools.cache
def server() -> Server:
    return Server()


def _of_start(env: dict[str, str]) -> dict[str, str]:
    # billiard reads the last one when it is imported.
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LD_", "REMAP_SIGTERM"))}


def start(argv: Sequence[str], log: Path, env: dict[str, str], by: Sequence[str] = ()) -> Process:
    """Run ``python -m argv...`` in a session of its own. Its output is appended to the log, and it dies with the tests.

    It is a fork unless a new interpreter is needed: another program starts it (``by``), or its environment has other
    variables of the interpreter (``PYTHONPATH``, ``LD_PRELOAD``). A thread gets no fork either, because a fork server
    that a thread starts dies with that thread.
    """
    log.touch()
    is_plain = not by and _of_start(env) == _of_start({**os.environ, **START})
    if is_plain and threading.current_thread() is threading.main_thread():
        return server().start(argv, log, env)
    command = [*by, *die_with_parent(sys.executable, "-m", *argv)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=env, cwd=ROOT, start_new_session=True)


def _fork(argv: list[str], log: str, env: dict[str, str]) -> int:
    """Return the child's pid in the parent; in the child, 0."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = argv
    return 0


def _serve(control: socket.socket) -> str | None:
    """Fork on request, and report what ended. Return the module to run in a child, None in the server at its end."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    _, status = os.waitpid(key.data, 0)
                    told = {"ended": key.data, "code": os.waitstatus_to_exitcode(status)}
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                elif not (wanted := control.recv(LONGEST)):
                    return None
                else:
                    argv, log, env = json.loads(wanted)
                    if not (pid := _fork(argv, log, env)):
                        for other in set(selector.get_map()) - {control.fileno()}:
                            os.close(other)
                        control.close()
                        return argv[0]
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                    told = {"pid": pid}
                control.send(json.dumps(told).encode())


if __name__ == "__main__":
    for each in IMPORTED:
        importlib.import_module(each)
    if module := _serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
