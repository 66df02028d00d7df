"""A group sends no savepoints. If a body rolls back to one, the whole group is rolled back, and the body runs alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Alone(BaseException):
    """A body does what it can do only when it runs alone. ``except Exception`` does not catch this."""


@contextmanager
def none_sent(connection: Any) -> Iterator[None]:
    """Replace the hooks that a Django backend overrides; ``contrib/savepoints`` also replaces them."""
    hooks = ("_savepoint", "_savepoint_commit", "_savepoint_rollback")
    before = {name: vars(connection)[name] for name in hooks if name in vars(connection)}

    def roll_back(sid: str) -> None:
        # Even if the body catches the exception, no further statement of this transaction is executed.
        connection.needs_rollback = True
        raise Alone("it rolls back to a savepoint")

    connection._savepoint = connection._savepoint_commit = lambda sid: None
    connection._savepoint_rollback = roll_back
    try:
        yield
    finally:
        for name in hooks:
            delattr(connection, name)
        vars(connection).update(before)
