"""Roles of PostgreSQL: whose sessions may be ended. Workers may log in with a role each, and take on another one."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import ProgrammingError, connections, transaction

from jobs.database.databases import ask

#: Whether the session ``a`` of ``pg_stat_activity`` may be ended by this one, and seen: who may not see when it began
#: would not know whether its process is another one's by now.
MAY_END = """(
    (pg_has_role(a.usesysid, 'USAGE')
        OR (pg_has_role('pg_signal_backend', 'USAGE') AND pg_has_role('pg_read_all_stats', 'USAGE')))
    AND (SELECT rolsuper FROM pg_roles WHERE oid = a.usesysid)
        <= (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
)"""

#: The roles whose sessions run jobs, or ran the last ones, and may not be ended.
_OUT_OF_REACH = f"""
SELECT DISTINCT a.usename::text FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid = ANY (%s) AND NOT {MAY_END}
ORDER BY 1
"""

#: By two indexes: the sessions that run jobs, and those of the last that ended.
_SESSIONS = """
(SELECT DISTINCT backend FROM jobs_job WHERE state = 'running' AND backend IS NOT NULL LIMIT 1000)
UNION
(SELECT backend FROM jobs_job WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1000)
"""

CURE = "GRANT pg_signal_backend, pg_read_all_stats TO {role}, or let all workers log in with the same role"


@contextmanager
def logged_in(using: str) -> Iterator[None]:
    """A savepoint in which the session is the role that it logged in with, and not the one of ``assume_role``.

    The server asks by the former who may see and end its sessions.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting('role'), set_config('role', 'none', true)")
        before = cursor.fetchone()[0]
        yield
        # After an exception the end of the savepoint does the same.
        cursor.execute("SELECT set_config('role', %s, true)", [before])


def out_of_reach(using: str) -> tuple[str, list[str]]:
    """The role that this process logs in with, and those of other workers whose sessions it may not end."""
    if connections[using].vendor != "postgresql":
        return "", []
    try:
        pids = [pid for [pid] in ask(using, _SESSIONS) if pid is not None]
    except ProgrammingError:
        # It is not migrated yet.
        return "", []
    with logged_in(using):
        return ask(using, "SELECT current_user::text")[0][0], [role for [role] in ask(using, _OUT_OF_REACH, pids)]
