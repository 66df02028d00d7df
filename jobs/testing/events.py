"""What a run does that others can see, or that a rollback does not take back: recorded where it happens, in a child.

Nothing is put back: the process that records is a child of the test, and ends after its run.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import smtplib
import sys
import sysconfig
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, wraps
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import django
from celery import current_app
from django.core.cache.backends import locmem
from django.core.mail import EmailMessage
from django.core.mail.backends.locmem import EmailBackend
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

import jobs
from jobs.conf import syncpoints
from jobs.database import databases
from jobs.execution import pipeline
from jobs.lifecycle import isolation
from jobs.lifecycle.run import current_run

#: What leaves, and no rollback takes back.
EFFECTS = ("mail", "http", "celery")

#: Requests that change nothing, and those that may be repeated by what they mean.
SAFE, REPEATABLE = ("GET", "HEAD", "OPTIONS", "TRACE"), ("PUT", "DELETE")

#: Statements that are part of a transaction, and no point of their own.
_CONTROL = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT")

#: Headers by which who gets it can tell that it is the same one.
_KEYS = ("message-id", "idempotency-key", "x-idempotency-key")

#: The clients that do not go through ``http.client``, and what each calls to send.
CLIENTS = (("httpx", "Client", "send"), ("httpx", "AsyncClient", "send"), ("aiohttp", "ClientSession", "_request"))


@dataclass
class Event:
    """One statement, commit, mail, HTTP request, cache write or message to a stock task of a run."""

    #: From 1 on.
    number: int
    #: ``sql``, ``commit``, ``mail``, ``http``, ``cache`` or ``celery``.
    kind: str
    #: In short: the statement, the recipients, the URL.
    what: str
    #: Of the task's own code; empty and 0 if none called it (the completion, say).
    file: str = ""
    line: int = 0
    #: Of an effect: by which the other side knows that it is the same one; None without one.
    key: str | None = None
    #: Whether it came to its end: what raised, or was killed before, did not happen.
    is_done: bool = False
    #: How it failed: the database's code (SQLSTATE), or the class of the exception.
    error: str = ""
    #: Whether it is of the run that was asked for, and not of what that one enqueued.
    is_own: bool = True
    #: When it began and ended, on the machine's monotonic clock.
    at: float = 0.0
    ended: float = 0.0

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else "jobs"

    def __str__(self) -> str:
        return f"{self.number}. {self.what} ({self.place})"


# Whose line it is

_LIBRARIES = tuple(
    os.path.realpath(str(path)) + os.sep
    for path in {Path(jobs.__file__).parent, Path(django.__file__).parent, sysconfig.get_path("stdlib")}
)


@cache
def _is_own(filename: str) -> bool:
    if filename.startswith("<") or "site-packages" in filename or "dist-packages" in filename:
        return False
    return not os.path.realpath(filename).startswith(_LIBRARIES)


def own_line(frame: FrameType | None) -> tuple[str, int]:
    """The innermost line of the task's own code, and not of Django, of this app or of another library."""
    while frame is not None and frame.f_code.co_filename != pipeline.__file__:
        if _is_own(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return "", 0


def shown(filename: str) -> str:
    path = os.path.relpath(filename)
    return filename if path.startswith("..") else path


# In the child


class Recorder:
    """
    Parameters:
        pipe: where the parent hears of each event, also if this process is killed after it.
        caches: a file in which all processes of a test share what is in their caches.
        is_sealed: no HTTP request and no mail leaves.
        job: the one that was asked for; None: whatever runs here is.
        dies_after: the process ends itself after so many events; 0: before the first one.
        is_stepwise: it waits before each event until the parent lets it on.
    """

    def __init__(
        self,
        pipe: Connection,
        caches: Path,
        is_sealed: bool,
        job: uuid.UUID | None = None,
        dies_after: int | None = None,
        is_stepwise: bool = False,
    ) -> None:
        self._pipe, self._caches, self._is_sealed = pipe, caches, is_sealed
        self._job, self._dies_after, self._is_stepwise = job, dies_after, is_stepwise
        self._count = 0
        self._inside = threading.local()
        #: One thread at a time talks to the parent.
        self._lock = threading.RLock()
        #: The completion and its commit, which are one event.
        self._completion: Event | None = None

    def install(self) -> None:
        load_caches(self._caches)
        self._watch_database()
        self._watch_http()
        # Several caches may be of one class.
        for owner, name, kind in {place[:3] for place in isolation.places()}:
            if kind == "mail":
                self._watch(owner, name, kind, _mail)
            elif kind == "cache":
                self._watch(
                    owner, name, kind, lambda cache, key="", *_, name=name, **__: (f"cache.{name}({key!r})", None)
                )
        # Of several mails at once.
        self._watch(EmailBackend, "send_messages", "mail", _mails)
        self._watch_messages(current_app._get_current_object())
        syncpoints.arm(self._reach)

    def tell(self, **said: Any) -> None:
        """Tell the parent."""
        with self._lock:
            self._pipe.send_bytes(json.dumps(said).encode())

    def _wait(self) -> None:
        if self._is_stepwise:
            with self._lock:
                self.tell(is_waiting=True)
                try:
                    self._pipe.recv_bytes()
                except EOFError:
                    # The parent is gone.
                    os._exit(1)

    @property
    def _is_on(self) -> bool:
        """Whether what happens here is an event: not within another one, nor outside of a run.

        A thread that the body started knows of no run.
        """
        is_running = current_run() is not None or threading.current_thread() is not threading.main_thread()
        return is_running and not getattr(self._inside, "is_on", False)

    @contextmanager
    def event(self, kind: str, what: str, key: str | None = None) -> Iterator[None]:
        """Around something that happens; what happens in it is part of it."""
        if not self._is_on:
            yield
            return
        event = self._begin(kind, what, key)
        self._inside.is_on = True
        try:
            yield
        except Exception as exc:
            error = databases.sqlstate(exc) or type(exc).__name__
            self.tell(number=event.number, error=error, ended=time.monotonic())
            raise
        finally:
            self._inside.is_on = False
        self._end(event)

    def _begin(self, kind: str, what: str, key: str | None) -> Event:
        file, line = own_line(sys._getframe(1))
        self._count += 1
        run = current_run()
        is_own = run is None or self._job in (None, run.job.pk)
        event = Event(self._count, kind, what, file, line, key, is_own=is_own, at=time.monotonic())
        self.tell(**asdict(event))
        if is_own:
            self._wait()
        load_caches(self._caches)
        return event

    def _end(self, event: Event) -> None:
        if event.kind == "cache":
            save_caches(self._caches)
        self.tell(number=event.number, is_done=True, ended=time.monotonic())
        if event.is_own:
            self._die(event.number)

    def _die(self, number: int) -> None:
        if number == self._dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def _watch(self, owner: Any, name: str, kind: str, describe: Callable[..., tuple[str, str | None]]) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.event(kind, *describe(*args, **kwargs)):
                return original(*args, **kwargs)

        setattr(owner, name, watched)

    # Statements and commits

    def _watch_database(self) -> None:
        execute, commit = CursorWrapper._execute_with_wrappers, BaseDatabaseWrapper._commit  # type: ignore[attr-defined]

        def executing(cursor: Any, sql: Any, params: Any, many: bool, executor: Any) -> Any:
            text = str(sql)
            # A connection of our own (locks, beats) is no part of the run.
            is_main = connections[cursor.db.alias] is cursor.db if cursor.db.alias in connections else False
            if self._completion is not None or not is_main or text.lstrip().startswith(_CONTROL):
                return execute(cursor, sql, params, many, executor)
            with self.event("sql", shortened(text)):
                return execute(cursor, sql, params, many, executor)

        def committing(connection: Any) -> Any:
            if self._completion is not None:
                commit(connection)
                # Before the hooks of on_commit().
                return self._complete()
            with self.event("commit", "COMMIT"):
                return commit(connection)

        CursorWrapper._execute_with_wrappers = executing  # type: ignore[attr-defined]
        BaseDatabaseWrapper._commit = committing  # type: ignore[attr-defined]

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
        event, self._completion = self._completion, None
        if event is not None:
            self._end(event)

    # HTTP, mails, messages

    def _watch_http(self) -> None:
        """``http.client`` sends step by step; a test may replace what is below ``requests`` and ``httpx``."""

        def put_request(connection: Any, method: str, url: str, *args: Any, **kwargs: Any) -> None:
            if self._is_sealed:
                raise HttpRefused(f"{method} to {connection.host}: HTTP is refused here (--allow-http)")
            port = "" if connection.port in (80, 443) else f":{connection.port}"
            connection.jobs_request = (method, f"{connection.host}{port}{url}", {})

        def put_header(connection: Any, header: Any, *values: Any) -> None:
            connection.jobs_request[2][_text(header)] = ",".join(map(_text, values))

        def end_headers(connection: Any, message_body: Any = None, **kwargs: Any) -> None:
            # Now the first byte leaves.
            if self._is_on:
                method, url, headers = connection.jobs_request
                body = message_body if isinstance(message_body, bytes) else b""
                event = self._begin("http", f"{method} {url}", _key_of_request(method, url, headers, body))
                connection.jobs_event = event

        def get_response(connection: Any) -> None:
            if (event := vars(connection).pop("jobs_event", None)) is not None:
                self._end(event)

        _wrap(http.client.HTTPConnection, "putrequest", put_request)
        _wrap(http.client.HTTPConnection, "putheader", put_header)
        _wrap(http.client.HTTPConnection, "endheaders", end_headers)
        _wrap(http.client.HTTPConnection, "getresponse", after=get_response)
        for module, name in {"requests": "Session", "httpx": "Client"}.items():
            if module in sys.modules:
                self._watch(getattr(sys.modules[module], name), "send", "http", _request)
        if self._is_sealed:
            smtplib.SMTP.connect = _refuse  # type: ignore[method-assign]
            for module, name, method in CLIENTS:
                if (found := getattr(sys.modules.get(module), name, None)) is not None:
                    setattr(found, method, _refuse)

    def _watch_messages(self, app: Any) -> None:
        """Messages to stock tasks are noted, and not sent."""

        def send(producer: Any, name: str, message: Any, **options: Any) -> None:
            with self.event("celery", f"call of the stock task {name}", str(message.headers.get("id"))):
                return

        app.amqp.send_task_message = send


class HttpRefused(Exception):
    """``manage.py jobs crashtest`` makes no HTTP requests without ``--allow-http``."""


def import_clients() -> None:
    """Those that do not go through ``http.client``: a body that imports one later finds it refusing."""
    for module, *_ in CLIENTS:
        with suppress(ImportError):
            import_module(module)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise HttpRefused("HTTP and connections to mail servers are refused here (--allow-http)")


def _wrap(
    owner: Any, name: str, before: Callable[..., None] | None = None, after: Callable[[Any], None] | None = None
) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        if after is not None:
            after(self)
        return result

    setattr(owner, name, wrapped)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def shortened(sql: str, most: int = 120) -> str:
    """A statement in one line, without the names of the columns that it reads."""
    text = " ".join(sql.split())
    if text.startswith("SELECT") and " FROM " in text:
        text = f"SELECT ... {text[text.index(' FROM ') + 1 :]}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _key(headers: dict[str, str], *payload: str) -> str | None:
    """The key that it carries: a header, or the key of the job somewhere in it."""
    for name, value in headers.items():
        if name.lower() in _KEYS:
            return value
    run = current_run()
    if run is None:
        return None
    own = {run.job.idempotency_key, str(run.job.pk)}
    return next((key for key in own if any(key in text for text in (*payload, *headers.values()))), None)


def _mail(message: Any, *args: Any, **kwargs: Any) -> tuple[str, str | None]:
    if not isinstance(message, EmailMessage):
        # smtplib's sendmail(server, from, to, text)
        to = [args[1]] if isinstance(args[1], str) else list(args[1])
        text = _text(args[2])
        lines: Sequence[str] = text.partition("\n\n")[0].splitlines()
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        return f"mail to {', '.join(to)}", _key(headers, text)
    headers = {name: str(value) for name, value in message.extra_headers.items()}
    return f"mail to {', '.join(message.recipients())}", _key(headers, str(message.body))


def _mails(backend: Any, messages: Sequence[EmailMessage]) -> tuple[str, str | None]:
    found = [_mail(message) for message in messages]
    return f"{len(found)} mails: {'; '.join(what for what, _ in found)}", None


def _request(client: Any, request: Any, *args: Any, **kwargs: Any) -> tuple[str, str | None]:
    body = getattr(request, "body", None)
    if body is None:
        with suppress(Exception):
            body = request.content
    url = str(request.url).partition("://")[2]
    headers = {_text(name): _text(value) for name, value in request.headers.items()}
    return f"{request.method} {url}", _key_of_request(request.method, url, headers, body or b"")


def _key_of_request(method: str, url: str, headers: dict[str, str], body: Any) -> str | None:
    if method.upper() in REPEATABLE:
        return f"{method} {url}"
    return _key(headers, url, _text(body))


# Caches in memory, shared by the processes of a test as one in Redis would be


def save_caches(path: Path) -> None:
    # As JSON: nothing of ours unpickles. The values are bytes.
    kept = [
        [name, key, locmem._expire_info[name].get(key), value.hex()]  # type: ignore[attr-defined]
        for name, values in locmem._caches.items()  # type: ignore[attr-defined]
        for key, value in values.items()
    ]
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(kept))
    beside.rename(path)


def load_caches(path: Path) -> None:
    if not path.exists():
        return
    # In place: caches that are in use have them.
    for values in (*locmem._caches.values(), *locmem._expire_info.values()):  # type: ignore[attr-defined]
        values.clear()
    for name, key, expires_at, value in json.loads(path.read_text()):
        locmem._caches.setdefault(name, OrderedDict())[key] = bytes.fromhex(value)  # type: ignore[attr-defined]
        locmem._expire_info.setdefault(name, {})[key] = expires_at  # type: ignore[attr-defined]
