"""PostgreSQL's driver of this environment, psycopg 3 or psycopg2: both have ``connect()`` and ``errors``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext

from jobs.store import sessions

try:
    import psycopg
except ImportError:
    import psycopg2 as psycopg  # type: ignore[no-redef]

IS_3 = psycopg.__name__ == "psycopg"


def error(name: str, code: str) -> Exception:
    """What the server refuses, as the driver raises it; psycopg2's has the code only if it comes from the server."""
    kind: Any = getattr(psycopg.errors, name)
    made: Exception = kind() if IS_3 else type(name, (kind,), {"pgcode": code})()
    return made


DEADLOCK, SERIALIZATION = error("DeadlockDetected", "40P01"), error("SerializationFailure", "40001")


def ask(raw: Any, sql: str) -> Any:
    """The first row over a connection of the driver's own; None of what has none."""
    with raw.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone() if cursor.description else None


@contextmanager
def executed(monkeypatch: Any) -> Iterator[list[str]]:
    """All statements but those that begin and end a transaction, also those that do not pass through Django."""
    found: list[str] = []
    if connection.vendor != "postgresql":
        with CaptureQueriesContext(connection) as queries:
            yield found
        found += [query["sql"] for query in queries if not query["sql"].startswith(("BEGIN", "COMMIT"))]
        return

    def note(do: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, sql: Any, *more: Any, **how: Any) -> Any:
            found.append(str(sql))
            return do(self, sql, *more, **how)

        return noted

    places: list[tuple[Any, str]]
    if has_plain_session():
        places = [(session_class(), "_executed"), (CursorWrapper, "execute")]
    else:
        places = [(psycopg.Cursor, "execute"), (session_class(), "_send")]
    with monkeypatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, note(getattr(owner, name)))
        yield found


def notices(raw: Any) -> list[str]:
    """What the server says beside its answers, from now on."""
    if not IS_3:
        told: list[str] = raw.notices
        return told
    told = []
    raw.add_notice_handler(lambda notice: told.append(notice.message_primary))
    return told


def session_class() -> type[sessions.Session]:
    """The class of what bypasses Django's log."""
    return type(sessions.session_of("default"))


def is_plain() -> bool:
    """Whether this is psycopg2."""
    return connection.vendor == "postgresql" and not IS_3


def has_plain_session() -> bool:
    """Whether no extension makes more of the connection: it does of psycopg 3's."""
    return connection.vendor == "postgresql" and session_class() is sessions.Session


def prepares() -> None:
    """For tests of what only an extension does with psycopg 3."""
    if has_plain_session():
        pytest.skip("a plain session prepares nothing, and has no pipelines")
