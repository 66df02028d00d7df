"""PostgreSQL's store, whose connections do not send some savepoints."""

from __future__ import annotations

from typing import Any

from jobs.store.base import Store
from jobs.store.postgresql import PostgreSQL, count_begins
from jobs.store.sessions import has_begun


class Sparing(PostgreSQL):
    def prepare_body(self) -> None:
        if not hasattr(self.connection, "_jobs_spared"):
            spare_savepoints(self)
        super().prepare_body()


def spare_savepoints(at: Store) -> None:
    """Do not send a savepoint at the very start of a transaction: rolling back to it rolls back the transaction.

    A body often has ``with transaction.atomic():`` around it. The run has its transaction already, so this would be a
    savepoint, and cost two round trips. The three hooks are methods that Django's database backends override.
    """
    connection: Any = at.connection
    spared = connection._jobs_spared = set()
    save, roll_back, release = connection._savepoint, connection._savepoint_rollback, connection._savepoint_commit

    def savepoint(sid: str) -> None:
        if has_begun(connection):
            # Django may restart its count, and reuse the id of a savepoint that was never released.
            spared.discard(sid)
            save(sid)
        else:
            spared.add(sid)

    def savepoint_rollback(sid: str) -> None:
        if sid in spared:
            was_ended = at.has_ended()
            connection._rollback()
            if not was_ended:
                count_begins(connection)
        else:
            roll_back(sid)

    def savepoint_commit(sid: str) -> None:
        if sid in spared:
            spared.discard(sid)
        else:
            release(sid)

    connection._savepoint = savepoint
    connection._savepoint_rollback = savepoint_rollback
    connection._savepoint_commit = savepoint_commit
