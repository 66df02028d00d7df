"""The broker's messages as rows, for maintenance: it needs no kombu."""

from contextlib import closing

from jobs.store.databases import SideDatabase, home

#: Seconds after which unread replies of the remote control are deleted.
REPLY_TTL = 3600.0


def are_in(using: str) -> bool:
    """Whether the messages are in this database, or in the file beside it."""
    return using == home()


def count() -> int:
    with closing(SideDatabase()) as side:
        [[number]] = side.execute("SELECT count(*) FROM jobs_message")
        return int(number)


def delete_all() -> int:
    with closing(SideDatabase()) as side:
        return int(side.execute("DELETE FROM jobs_message"))


def prune_replies() -> int:
    """Delete the queues of remote control and events that have no reader any more; return how many messages went."""
    stale = "FROM jobs_message WHERE visible_at < {now} - %s AND (queue LIKE %s OR queue LIKE %s)"
    params = (REPLY_TTL, "%.celery.pidbox", "celeryev.%")
    # The pruning thread has no open transaction.
    with closing(SideDatabase(is_apart=False)) as side:
        side.execute(f"DELETE FROM jobs_binding WHERE queue IN (SELECT queue {stale})", *params)
        return int(side.execute(f"DELETE {stale}", *params))
