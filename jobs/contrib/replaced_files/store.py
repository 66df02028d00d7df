"""SQLite's store, which claims nothing when the database's file was replaced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.db import OperationalError

from jobs import store
from jobs.models import Job
from jobs.store.base import Claim
from jobs.store.sqlite import SQLite

#: What a worker says of a file that is not the one it has open.
REPLACED = "the database's file was replaced while the worker runs"


def _file_of(connection: Any) -> int | None:
    """The file at the database's path (its inode); None: there is none, or the database is in memory."""
    with suppress(OSError):
        return os.stat(connection.settings_dict["NAME"]).st_ino
    return None


def is_replaced(alias: str) -> bool:
    """Whether another file is now in the place of the one that is connected."""
    at = store.of(alias)
    return isinstance(at, Watching) and at.is_replaced()


class Watching(SQLite):
    def prepare(self, connection: Any) -> None:
        super().prepare(connection)
        connection.jobs_file = _file_of(connection)

    def is_replaced(self) -> bool:
        """A connection would use the old file for ever, and nobody would see what it does there."""
        connection = self.connection
        was = getattr(connection, "jobs_file", None) if connection.connection is not None else None
        return was is not None and _file_of(connection) not in (None, was)

    def with_ready(self, queues: Sequence[str]) -> list[str]:
        if self.is_replaced():
            raise OperationalError(REPLACED)
        return super().with_ready(queues)

    def claim(self, claim: Claim) -> list[Job]:
        if self.is_replaced():
            raise OperationalError(REPLACED)
        return super().claim(claim)
