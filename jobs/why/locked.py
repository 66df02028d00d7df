"""Who holds a job up in the database: transactions of others. Only PostgreSQL says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connections
from django.utils.translation import gettext

from jobs.times import duration
from jobs.why.reason import Reason
from jobs.why.view import View

_ACTIVITY = """
SELECT pid, activity.application_name, activity.state, extract(epoch FROM clock_timestamp() - activity.xact_start)
"""

#: What the server's process that serves the run waits for.
_BLOCKING = f"{_ACTIVITY} FROM unnest(pg_blocking_pids(%s)) AS pid JOIN pg_stat_activity AS activity USING (pid)"

#: Whose open transaction has locked or changed the row. The look waits for nobody, and locks nothing.
_LOCKING = f"""
{_ACTIVITY} FROM jobs_job JOIN pg_locks ON locktype = 'transactionid' AND transactionid = jobs_job.xmax AND granted
JOIN pg_stat_activity AS activity USING (pid) WHERE jobs_job.id = %s
"""

#: Seconds after which an open transaction is worth a word.
OLD = 60

#: As long as it is open nothing is cleaned up that ended since, and claims step over it.
_OLDEST = f"""
{_ACTIVITY} FROM pg_stat_activity AS activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND xact_start < clock_timestamp() - interval '1 second' * %s ORDER BY xact_start LIMIT 1
"""


def blocked(view: View) -> Iterator[Reason]:
    """The body of a running job waits."""
    if view.job.backend is not None and (found := _ask(view, _BLOCKING, view.job.backend)):
        says = gettext(
            "It waits for a lock of the database process %(pid)s (%(state)s, its transaction open since %(since)s)."
        )
        yield _reason("database_lock", says, found, backend=view.job.backend)


def row_locked(view: View) -> Iterator[Reason]:
    """Nobody can claim a waiting job."""
    if found := _ask(view, _LOCKING, view.job.pk):
        says = gettext(
            "Its row is locked by the database process %(pid)s (%(state)s, its transaction open since %(since)s): no "
            "worker can claim it."
        )
        yield _reason("row_locked", says, found)


def slowed(view: View) -> Iterator[Reason]:
    """Claims take longer than they should."""
    if found := _ask(view, _OLDEST, OLD):
        says = gettext(
            "The database process %(pid)s (%(state)s) keeps a transaction open since %(since)s: each claim steps over "
            "all jobs that were ready since then."
        )
        yield _reason("old_transaction", says, found)


def _ask(view: View, sql: str, value: Any) -> dict[str, Any] | None:
    if connections[view.using].vendor != "postgresql":
        return None
    with connections[view.using].cursor() as cursor:
        cursor.execute(sql, [value])
        found = cursor.fetchone()
    names = ("pid", "application", "state", "seconds")
    return found and dict(zip(names, (*found[:3], float(found[3] or 0)), strict=True))


def _reason(code: str, says: str, found: dict[str, Any], **evidence: Any) -> Reason:
    cure = gettext("SELECT * FROM pg_stat_activity WHERE pid = %s shows what that does.") % found["pid"]
    return Reason(code, says % {**found, "since": duration(found["seconds"])}, cure, {**found, **evidence})
