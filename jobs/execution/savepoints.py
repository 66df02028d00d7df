"""A savepoint at the very beginning of a transaction is not sent: rolling back to it is rolling back the transaction.

A body is often written with ``with transaction.atomic():`` around it. The run has its transaction already, so this
would be a savepoint, and cost two round trips (PostgreSQL).
"""

from typing import Any

from jobs.database.sessions import has_begun


def spare(connection: Any) -> None:
    """Spare this connection such savepoints. The three hooks are those that a Django backend overrides."""
    if connection.vendor != "postgresql" or hasattr(connection, "_jobs_spared"):
        return
    spared = connection._jobs_spared = set()
    save, roll_back, release = connection._savepoint, connection._savepoint_rollback, connection._savepoint_commit

    def savepoint(sid: str) -> None:
        if has_begun(connection):
            # Django may count anew: an id that was never released comes again.
            spared.discard(sid)
            save(sid)
        else:
            spared.add(sid)

    def savepoint_rollback(sid: str) -> None:
        if sid in spared:
            connection._rollback()
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
