"""The statement that wakes the first of the jobs that wait for something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models.functions import Now

from jobs import store
from jobs.models import AWAITING, Job
from jobs.store.postgresql import UNSYNCED, PostgreSQL

_WAKE = """
UPDATE jobs_job SET {columns} {unsynced}
WHERE state = 'scheduled' AND id = (
    SELECT id FROM jobs_job WHERE state = 'scheduled' AND waits_for = %(what)s ORDER BY waits_for, id LIMIT 1
)
RETURNING queue
"""
_TELLING = "WITH woken AS ({}) SELECT queue, pg_notify(%(channel)s, queue || %(told)s) FROM woken"


def wake_first(using: str, what: str, columns: Mapping[str, Any], told: tuple[str, str] | None) -> str | None:
    """Write ``columns`` to the first job that waits for ``what``: it goes on. Its queue; None: no job waited.

    Parameters:
        told: a channel, and the text that the same statement sends there behind the queue's name.
    """
    at = store.of(using)
    if not isinstance(at, PostgreSQL):
        waiting = Job.objects.using(using).filter(AWAITING, waits_for=what)
        found = waiting.order_by("waits_for", "pk").values_list("pk", "queue").first()
        return found[1] if found and waiting.filter(pk=found[0]).update(**columns) else None
    values = {name: value for name, value in columns.items() if not isinstance(value, Now)} | {"what": what}
    if told is not None:
        values |= {"channel": told[0], "told": told[1]}
    sql = wake_sql(columns, at.connection.get_autocommit(), told is not None)
    connection = at.connection
    # Without a session a connection has executed little. And Django's own cursor shows what it executes.
    if hasattr(connection, "_jobs_session") and not (connection.queries_logged or connection.execute_wrappers):
        return next((queue for queue, *_ in at.session.fetch(sql, values)), None)
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return next((queue for queue, *_ in cursor.fetchall()), None)


def wake_sql(columns: Mapping[str, Any], is_alone: bool, tells: bool) -> str:
    """Outside of a transaction a crash of the server may lose it, as if its process had died before it.

    Inside a transaction it must not change how that transaction commits.
    """
    sets = [
        f"{name} = {'statement_timestamp()' if isinstance(columns[name], Now) else f'%({name})s'}" for name in columns
    ]
    sql = _WAKE.format(columns=", ".join(sets), unsynced=UNSYNCED if is_alone else "")
    return _TELLING.format(sql) if tells else sql
