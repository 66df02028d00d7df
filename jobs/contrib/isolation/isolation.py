"""Find effects in a transaction that no rollback undoes, where they happen (``JOBS["ISOLATION"]``).

A mail, an HTTP request and a message to a stock task leave although the transaction rolls back, and a cache shows
other processes what is not committed; meanwhile the transaction holds its locks. The transaction of Django's
``TestCase`` does not count.

The body of a durable task is watched in another way: what it does outside of its steps happens again at each wake.
"""

from __future__ import annotations

import http.client
import inspect
import re
import smtplib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import cache, wraps
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.mail import EmailMessage
from django.db import connections
from django.db.transaction import Atomic
from django.utils.module_loading import import_string

from jobs.conf import Celery, conf
from jobs.errors import NotIsolated, NotIsolatedWarning
from jobs.lifecycle.run import current_run
from jobs.models import tables
from jobs.store import databases

#: For each kind: what is wrong with it in a transaction, the cure outside of a job, and the cure in a body.
TEXTS = {
    "mail": (
        "leaves although the transaction may roll back",
        "enqueue a job that sends it",
        "hand on self.job.idempotency_key as its Message-ID and allow it, or declare the task with atomic=False",
    ),
    "http": (
        "leaves although the transaction may roll back, whose locks are held until it is answered",
        "enqueue a job that makes it",
        "declare the task with atomic=False, and make it in `with effect(...)`",
    ),
    "cache": (
        "tells others what is not committed, and may never be",
        "write it in transaction.on_commit()",
        "write it in transaction.on_commit()",
    ),
    "celery": (
        "may run before the commit, or although the transaction rolls back",
        "give the task base=jobs.Task, or call its delay_on_commit()",
        "give the task base=jobs.Task, or call its delay_on_commit()",
    ),
}

#: Replaces both cures in the body of a task with ``grouped=True``: there, what is allowed elsewhere may happen twice
#: whenever a neighbour fails.
IN_GROUP = "leave grouped=True out of the task: if a neighbour of it fails, its body is rolled back and called again"

#: Replace both cures: in a step of a durable task, and in its body outside of steps.
IN_STEP = "make it a step of its own, with effect=True"
OUTSIDE = "do it in a step: self.step(name, function, ...), with effect=True if it leaves the database"

#: Matches a statement that writes, and its table; and what a new row in some of our tables stands for.
WRITE = re.compile(r"""\s*(insert|replace|update|delete)\b(?: ignore)?(?: into| from)?\s+["`]?(\w+)""", re.I)
CALLS = {"jobs_job": "the call of a task", "jobs_signal": "a signal", "jobs_event": "an event"}

#: The methods of a cache that write; the last ones are of some backends only.
WRITES = (
    *("set", "add", "incr", "delete", "touch", "set_many", "delete_many", "clear"),
    *("decr", "delete_pattern", "expire", "expire_at", "pexpire", "persist"),
)

#: The mode and what is allowed, from the innermost surrounding block; None without a block.
_around: ContextVar[tuple[str | None, tuple[str, ...]] | None] = ContextVar("jobs.isolation", default=None)

#: The run in whose body a block of ``atomic()`` ended last, and where that stands.
_inner: ContextVar[tuple[Any, ...]] = ContextVar("jobs.isolation.inner", default=())

#: In the body of a durable task: says whether it is outside of its steps.
_outside: ContextVar[Callable[[], bool] | None] = ContextVar("jobs.isolation.outside", default=None)


#: Called in place of the effect, with its kind and its description; the caller gets its return value.
_stand_in: ContextVar[Callable[[str, str], Any] | None] = ContextVar("jobs.isolation.stand_in", default=None)


#: The kind of the effect that was checked and is happening now: a mail's parts are not told again.
_leaving: ContextVar[str] = ContextVar("jobs.isolation.leaving", default="")


@contextmanager
def stopped(stand_in: Callable[[str, str], Any]) -> Iterator[None]:
    """No effect leaves the block, whatever the settings allow: ``stand_in`` is called instead, and may raise."""
    install()
    before = _stand_in.set(stand_in)
    try:
        yield
    finally:
        _stand_in.reset(before)


@contextmanager
def isolation(mode: str | None = "raise", allow: Sequence[str] = ()) -> Iterator[None]:
    """Watch a block, or the decorated function, as ``JOBS["ISOLATION"]`` watches the whole process.

    Parameters:
        mode: ``"raise"``, ``"warn"``, or None: the block may do anything.
        allow: kinds (``"mail"``, ``"http"``, ``"cache"``, ``"celery"``; outside of the steps of a durable task also
            ``"database"`` and ``"call"``), and names or patterns of tasks.

    Raises (where it happens):
        jobs.errors.NotIsolated: says what happened, and the cure.
    """
    if mode not in ("raise", "warn", None):
        raise ValueError(f"isolation(mode={mode!r}): it is 'raise' or 'warn', or None")
    install()
    before = _around.set((mode, tuple(allow)))
    try:
        yield
    finally:
        _around.reset(before)


def check(kind: str, what: str) -> None:
    """Called where such an effect is about to happen."""
    mode, allow = _mode()
    run = current_run()
    is_grouped = run is not None and getattr(run.task, "grouped", False)
    if mode is None or (kind in allow and not is_grouped):
        return
    outside = _outside.get()
    is_outside = outside is not None and outside()
    open_ones = [each.alias for each in connections.all(initialized_only=True) if databases.in_transaction(each.alias)]
    if not open_ones and not is_outside:
        return
    job = None if run is None else run.job
    if job is not None and any(fnmatchcase(job.task, pattern) for pattern in allow):
        return
    if is_outside:
        where, wrong, cure = "outside of the steps of a durable task", "happens again at each wake", OUTSIDE
    else:
        where = f"inside of a transaction of the database {open_ones[0]!r}"
        wrong, cure, cure_of_body = TEXTS[kind]
        if job is not None:
            cure = IN_GROUP if is_grouped else cure_of_body if outside is None else IN_STEP
        if job is not None and _inner.get()[:1] == (run,) and not is_grouped and outside is None:
            wrong += f", and so may the block of atomic() that ended at {_inner.get()[1]}, which is no commit here"
            cure = f"JOBS['TASKS'] = {{{job.task!r}: {{'atomic': False}}}}, with which it is one, or {cure}"
    names = [*([] if is_grouped else [kind]), *([job.task] if job else [])]
    text = (
        f"{what} {where}: it {wrong}. Cure: {cure}. If it is all right, add {' or '.join(map(repr, names))} to "
        "JOBS['ISOLATION_ALLOW']"
    )
    if mode == "raise":
        raise NotIsolated(text)
    warnings.warn(text, NotIsolatedWarning, stacklevel=3)


def _mode() -> tuple[str | None, Sequence[str]]:
    return _around.get() or (conf().ISOLATION, conf().ISOLATION_ALLOW)


@contextmanager
def repeated(outside: Callable[[], bool]) -> Iterator[bool]:
    """Watch the body of a durable task, also for writes and calls outside of its steps.

    It yields whether it watches.
    """
    if _mode()[0] is None:
        yield False
        return
    watch_connections()
    before = _outside.set(outside)
    try:
        yield True
    finally:
        _outside.reset(before)
        unwatch_connections()


def watch_connections() -> None:
    """Watch the statements that this thread sends to the databases."""
    for connection in connections.all():
        # Django's ``execute_wrapper()`` removes the last wrapper at its end, so this one is put first.
        connection.execute_wrappers.insert(0, _watch_writes)


def unwatch_connections() -> None:
    for connection in connections.all(initialized_only=True):
        with suppress(ValueError):
            connection.execute_wrappers.remove(_watch_writes)


def _watch_writes(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    outside = _outside.get()
    if outside is not None and outside() and (found := WRITE.match(str(sql))):
        verb, table = found[1].upper(), found[2]
        if table not in own_tables():
            check("database", f"{verb} of the table {table}")
        elif verb == "INSERT" and table in CALLS:
            check("call", CALLS[table])
    return execute(sql, params, many, context)


@cache
def own_tables() -> frozenset[str]:
    return frozenset(model._meta.db_table for model in tables())


def places() -> Iterator[tuple[type, str, str, Callable[..., str]]]:
    """Where effects leave the process: the class, its method, the kind, and a function that describes the effect."""
    yield EmailMessage, "send", "mail", lambda message, *given: f"the mail {message.subject!r}"
    # send_mass_mail() makes no use of EmailMessage.send().
    yield import_string(settings.EMAIL_BACKEND), "send_messages", "mail", lambda backend, *given: "mails"
    yield smtplib.SMTP, "sendmail", "mail", lambda server, *given: "a mail"
    # urllib, requests and urllib3 go through it as well.
    yield http.client.HTTPConnection, "putrequest", "http", lambda connection, *given: f"a request to {connection.host}"
    for alias in settings.CACHES:
        for name in (each for each in WRITES if hasattr(caches[alias], each)):
            yield type(caches[alias]), name, "cache", lambda cache, *given, name=name: f"{name}() of a cache"
    # Calls that become a row of the transaction do not pass through here.
    yield Celery, "send_task", "celery", lambda app, name="", *given: f"the stock task {name}"


def install() -> None:
    """Watch this process; a second call adds only what was imported since."""
    for place in places():
        _watch(*place)
    if not hasattr(Atomic.__exit__, "is_watched_by_jobs"):
        Atomic.__exit__ = _noting(Atomic.__exit__)  # type: ignore[method-assign]


def _noting(leave: Callable[..., Any]) -> Callable[..., Any]:
    """A block of ``atomic()`` in a body commits nothing if the body has a transaction of its own: note where it was."""

    @wraps(leave)
    def noting(self: Any, exc_type: Any, *exc: Any) -> Any:
        left = leave(self, exc_type, *exc)
        run = current_run()
        if run is not None and exc_type is None and databases.in_transaction(run.using):
            frame = inspect.currentframe()
            while frame and (name := frame.f_globals.get("__name__", "")) in (__name__, "contextlib"):
                frame = frame.f_back
            # The blocks of Django and of jobs themselves do not count as the body's.
            if frame is not None and name.partition(".")[0] not in ("django", __name__.partition(".")[0]):
                _inner.set((run, f"{frame.f_code.co_filename}:{frame.f_lineno}"))
        return left

    noting.is_watched_by_jobs = True  # type: ignore[attr-defined]
    return noting


def _watch(owner: type, name: str, kind: str, describe: Callable[[Any], str]) -> None:
    original = getattr(owner, name)
    if getattr(original, "is_watched_by_jobs", False):
        return

    @wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _leaving.get() == kind:
            return original(self, *args, **kwargs)
        if (stand_in := _stand_in.get()) is not None:
            return stand_in(kind, describe(self, *args))
        check(kind, describe(self, *args))
        before = _leaving.set(kind)
        try:
            return original(self, *args, **kwargs)
        finally:
            _leaving.reset(before)

    watched.is_watched_by_jobs = True  # type: ignore[attr-defined]
    setattr(owner, name, watched)
