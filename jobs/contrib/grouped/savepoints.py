"""In a group no savepoint is sent. A body that rolls back to one has the whole group roll back, and runs alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Alone(BaseException):
    """A body does what only one that runs alone can do. ``except Exception`` lets it pass."""


@contextmanager
def none_sent(connection: Any) -> Iterator[None]:
    """The hooks are those that a Django backend overrides; ``store/postgresql.py`` has some of its own."""
    hooks = ("_savepoint", "_savepoint_commit", "_savepoint_rollback")
    before = {name: vars(connection)[name] for name in hooks if name in vars(connection)}

    def roll_back(sid: str) -> None:
        # Whoever catches it, no statement of this transaction follows.
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
