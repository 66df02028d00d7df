"""Record what a run does: statements, commits, mails, HTTP requests, cache writes, and messages to stock tasks.

The recorder replaces methods of Django and of the standard library. It never puts them back, because it works in a
child of the test, which ends after its run.
"""

from __future__ import annotations

import http.client
import os
import signal
import smtplib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from email import message_from_string
from functools import partial, wraps
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from django.core.mail import EmailMessage
from django.core.mail.backends.locmem import EmailBackend
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.utils.text import Truncator

from jobs.conf import app_here, syncpoints
from jobs.contrib.inspection.frames import FOREIGN
from jobs.contrib.isolation import isolation
from jobs.execution import pipeline
from jobs.lifecycle.run import current_run
from jobs.store import databases

#: The kinds of operations that leave the machine. No rollback undoes them.
EFFECTS = ("mail", "http", "celery")

#: HTTP methods that change nothing, and those that HTTP allows to repeat.
SAFE, REPEATABLE = ("GET", "HEAD", "OPTIONS", "TRACE"), ("PUT", "DELETE")

#: Statements that only control a transaction. They are no operations.
_CONTROL = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT")

#: Headers that let the receiver recognise a repetition.
_KEYS = ("message-id", "idempotency-key", "x-idempotency-key")

#: HTTP clients that do not use ``http.client``, and the method with which each sends.
CLIENTS = (("httpx", "Client", "send"), ("httpx", "AsyncClient", "send"), ("aiohttp", "ClientSession", "_request"))


@dataclass
class Operation:
    """One statement, commit, mail, HTTP request, cache write, or message to a stock task."""

    #: From 1 on.
    number: int
    #: ``sql``, ``commit``, ``mail``, ``http``, ``cache`` or ``celery``.
    kind: str
    #: In short: the statement, the recipients, the URL.
    what: str
    #: The line of the task's own code; empty and 0 if no such line called it (for example, the completion).
    file: str = ""
    line: int = 0
    #: The key of an effect, which lets the receiver recognise a repetition; None: it has no key.
    key: str | None = None
    #: Whether it came to its end. If it raised, or the process was killed before, it did not happen.
    is_done: bool = False
    #: How it failed: the database's code (SQLSTATE), or the class of the exception.
    error: str = ""
    #: Whether it is a statement of a transaction that is still open: it is undone if the process dies.
    is_open: bool = False
    #: Whether it belongs to the job that was asked for, and not to one that this job enqueued.
    is_own: bool = True
    #: When it began and ended, on the machine's monotonic clock.
    at: float = 0.0
    ended: float = 0.0

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else "jobs"

    def __str__(self) -> str:
        return f"{self.number}. {self.what} ({self.place})"


@dataclass
class Recorder:
    #: Tells the parent of each operation, at once, because this process may be killed.
    pipe: Connection
    #: No HTTP request and no mail is sent.
    is_sealed: bool
    #: The job that was asked for; None: any job is.
    job: uuid.UUID | None = None
    #: The process ends itself after so many operations; 0: before the first one.
    dies_after: int | None = None
    #: It waits before each operation until the parent lets it on.
    is_stepwise: bool = False

    def __post_init__(self) -> None:
        self._count = 0
        self._inside = threading.local()
        #: Only one thread at a time talks to the parent.
        self._lock = threading.RLock()
        #: The completion and its commit, which are one operation.
        self._completion: Operation | None = None

    def install(self) -> None:
        _around(CursorWrapper, "_execute_with_wrappers", self._executing)
        _around(BaseDatabaseWrapper, "_commit", self._committing)
        syncpoints.arm(self._reach)
        self._watch_http()
        # Several caches may be of one class.
        for owner, name, kind in {place[:3] for place in isolation.places()}:
            if kind == "mail" and name != "send_messages":
                _around(owner, name, lambda *args, **kwargs: self.operation("mail", *_mail(*args)))
            elif kind == "cache":
                _around(owner, name, partial(self._caching, name))
        # This sends several mails at once.
        _around(EmailBackend, "send_messages", self._mailing)
        app_here().amqp.send_task_message = self._sending

    def tell(self, said: Any) -> None:
        """Tell the parent: an operation, or attributes of :class:`jobs.contrib.crashtest.child.Child`."""
        with self._lock:
            self.pipe.send(said)

    def _wait(self) -> None:
        if self.is_stepwise:
            with self._lock:
                self.tell({"is_waiting": True})
                try:
                    self.pipe.recv_bytes()
                except EOFError:
                    # The parent is gone.
                    os._exit(1)

    @property
    def _is_on(self) -> bool:
        """Whether what happens now is an operation: it is inside a run, and not inside another operation.

        A thread that the body started does not know the run.
        """
        is_running = current_run() is not None or threading.current_thread() is not threading.main_thread()
        return is_running and not getattr(self._inside, "is_on", False)

    @contextmanager
    def operation(self, kind: str, what: str, key: str | None = None, at: Any = None) -> Iterator[None]:
        """Note that something happens in this block. Whatever else happens in the block is part of it.

        Parameters:
            at: the connection of a statement.
        """
        if not self._is_on:
            yield
            return
        operation = self._begin(kind, what, key)
        self._inside.is_on = True
        try:
            yield
        except Exception as exc:
            operation.error = databases.sqlstate(exc) or type(exc).__name__
            operation.ended = time.monotonic()
            self.tell(operation)
            raise
        finally:
            self._inside.is_on = False
        operation.is_open = at is not None and at.in_atomic_block
        self._end(operation)

    def _begin(self, kind: str, what: str, key: str | None) -> Operation:
        file, line = own_line(sys._getframe(1), pipeline.__file__)
        self._count += 1
        run = current_run()
        is_own = run is None or self.job in (None, run.job.pk)
        operation = Operation(self._count, kind, what, file, line, key, is_own=is_own, at=time.monotonic())
        self.tell(operation)
        if is_own:
            self._wait()
        return operation

    def _end(self, operation: Operation) -> None:
        operation.is_done, operation.ended = True, time.monotonic()
        self.tell(operation)
        if operation.is_own:
            self._die(operation.number)

    def _die(self, number: int) -> None:
        if number == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    # What is an operation

    def _executing(self, cursor: Any, sql: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        text = str(sql)
        # A connection of our own (locks, beats) is no part of the run.
        is_main = cursor.db.alias in connections and connections[cursor.db.alias] is cursor.db
        if text.lstrip().upper().startswith("COMMIT"):
            # By hand: what follows does not follow what came before it (``crash.alike``).
            self._count += 1
        if self._completion is not None or not is_main or text.lstrip().startswith(_CONTROL):
            return nullcontext()
        return self.operation("sql", shortened(text), at=cursor.db)

    @contextmanager
    def _committing(self, connection: Any) -> Iterator[None]:
        if self._completion is None:
            with self.operation("commit", "COMMIT"):
                yield
        else:
            yield
            # This is before the hooks of on_commit().
            self._complete()

    def _caching(self, name: str, cache: Any, key: Any = "", *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        return self.operation("cache", f"cache.{name}({key!r})")

    def _mailing(self, sender: Any, messages: Sequence[EmailMessage]) -> AbstractContextManager[None]:
        return self.operation("mail", f"{len(messages)} mails: {'; '.join(_mail(each)[0] for each in messages)}")

    def _sending(self, producer: Any, name: str, message: Any, **options: Any) -> None:
        """A message to a stock task is noted, and not sent."""
        with self.operation("celery", f"call of the stock task {name}", str(message.headers.get("id"))):
            pass

    def _reach(self, point: str) -> None:
        if point == "after_claim" and not self._count:
            # Nothing has happened yet.
            self._die(0)
            self._wait()
        elif point == "before_commit" and self._is_on:
            self._completion = self._begin("commit", "COMMIT of the job's completion", None)
        elif point == "after_commit":
            self._complete()

    #: Completion and COMMIT go in one message to the server, as in a worker.
    _reach.point = "before_commit"  # type: ignore[attr-defined]

    def _complete(self) -> None:
        operation, self._completion = self._completion, None
        if operation is not None:
            self._end(operation)

    def _watch_http(self) -> None:
        """Watch ``http.client``, which sends step by step, and clients below which a test may replace everything."""

        @contextmanager
        def end_headers(connection: Any, message_body: Any = None, **kwargs: Any) -> Iterator[None]:
            # Now the first byte leaves.
            line, *lines = (each.decode("latin-1") for each in connection._buffer)
            method, url, _ = line.split(" ", 2)
            if self.is_sealed:
                raise HttpRefused(f"{method} to {connection.host}: HTTP is refused here (--allow-http)")
            if self._is_on:
                port = "" if connection.port in (80, 443) else f":{connection.port}"
                where, headers = f"{connection.host}{port}{url}", _headers("\n".join(lines))
                connection.jobs_operation = self._begin("http", *_described(method, where, headers, message_body))
            yield

        @contextmanager
        def get_response(connection: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
            operation = vars(connection).pop("jobs_operation", None)
            yield
            if operation is not None:
                self._end(operation)

        _around(http.client.HTTPConnection, "endheaders", end_headers)
        _around(http.client.HTTPConnection, "getresponse", get_response)
        for module, name in {"requests": "Session", "httpx": "Client"}.items():
            if module in sys.modules:
                client = getattr(sys.modules[module], name)
                _around(client, "send", lambda _, request, *args, **kwargs: self.operation("http", *_request(request)))
        if self.is_sealed:
            smtplib.SMTP.connect = _refuse  # type: ignore[method-assign]
            for module, name, method in CLIENTS:
                if (found := getattr(sys.modules.get(module), name, None)) is not None:
                    setattr(found, method, _refuse)


def _around(owner: Any, name: str, context: Callable[..., AbstractContextManager[None]]) -> None:
    """Enter a context around each call of a method. ``context`` makes it from the arguments of the call."""
    original = getattr(owner, name)

    @wraps(original)
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        with context(*args, **kwargs):
            return original(*args, **kwargs)

    setattr(owner, name, surrounded)


class HttpRefused(Exception):
    """``manage.py jobs crashtest`` makes no HTTP requests without ``--allow-http``."""


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise HttpRefused("HTTP and connections to mail servers are refused here (--allow-http)")


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def shortened(sql: str) -> str:
    """The statement in one line. The columns that it reads are left out."""
    text = " ".join(sql.split())
    if text.startswith("SELECT") and " FROM " in text:
        text = "SELECT ..." + text[text.index(" FROM ") :]
    return Truncator(text).chars(120, truncate="...")


def _key(headers: dict[str, str], *payload: str) -> str | None:
    """The key that it carries: one of the headers, or the key of the job anywhere in it."""
    for name, value in headers.items():
        if name.lower() in _KEYS:
            return value
    run = current_run()
    if run is None:
        return None
    own = {run.job.idempotency_key, str(run.job.pk)}
    return next((key for key in own if any(key in text for text in (*payload, *headers.values()))), None)


def _mail(sender: Any, *args: Any) -> tuple[str, str | None]:
    if isinstance(sender, EmailMessage):
        headers = {name: str(value) for name, value in sender.extra_headers.items()}
        return f"mail to {', '.join(sender.recipients())}", _key(headers, str(sender.body))
    # smtplib's sendmail(from, to, text)
    to, text = args[1], _text(args[2])
    return f"mail to {to if isinstance(to, str) else ', '.join(to)}", _key(_headers(text), text)


def _headers(text: str) -> dict[str, str]:
    return {name: str(value) for name, value in message_from_string(text).items()}


def _request(request: Any) -> tuple[str, str | None]:
    body = getattr(request, "body", None)
    if body is None:
        with suppress(Exception):
            body = request.content
    headers = {_text(name): _text(value) for name, value in request.headers.items()}
    return _described(request.method, str(request.url).partition("://")[2], headers, body or b"")


def _described(method: str, url: str, headers: dict[str, str], body: Any) -> tuple[str, str | None]:
    what = f"{method} {url}"
    return what, what if method.upper() in REPEATABLE else _key(headers, url, _text(body))


def own_line(frame: FrameType | None, until: str) -> tuple[str, int]:
    """The innermost own line among a frame and its callers, up to a frame of the file ``until``; or ``"", 0``."""
    while frame is not None and (path := frame.f_code.co_filename) != until:
        if not path.startswith("<") and not FOREIGN.search(path):
            return shown(path), frame.f_lineno
        frame = frame.f_back
    return "", 0


def shown(path: str) -> str:
    """The path relative to the working directory, if it is below it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
