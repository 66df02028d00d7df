"""SQLite. It has one writer, so statements that mostly find nothing first look without the write lock."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from django.db.models import BooleanField, DateTimeField, UUIDField

from jobs import extensions
from jobs.models import Job
from jobs.models.columns import BY_ORDER, Part, named
from jobs.models.fields import JSONText
from jobs.store import base, databases
from jobs.store.base import Claim

#: CURRENT_TIMESTAMP has whole seconds only.
NOW = databases.NOW_SQLITE

_READY = f"""
FROM jobs_job
WHERE state = 'ready' AND held IS NULL AND queue = %s AND (expires_at IS NULL OR expires_at > {NOW})
  AND EXISTS (SELECT 1 FROM jobs_node WHERE id = %s AND dead_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = %s) AND task NOT IN ({{without}}) {{only}}
"""

_CLAIM = f"""
UPDATE jobs_job
SET state = 'running', lease = lease + 1, token = %s, node_id = %s, backend = NULL, started_at = {NOW},
    limit_slot = NULL, queue_slot = NULL
WHERE id IN (SELECT id {_READY} ORDER BY {BY_ORDER} LIMIT %s)
RETURNING {{columns}}
"""

_SUCCEED = f"""
UPDATE jobs_job SET state = 'succeeded', finished_at = {NOW}, result = %s, error = NULL
WHERE id = %s AND state = 'running' AND lease = %s AND token = %s
  AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = %s)
"""

_MARK = f"""
INSERT INTO jobs_marker (key, kind, fingerprint, job, created_at, expires_at)
VALUES (%s, %s, %s, %s, {NOW}, strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds'))
ON CONFLICT DO NOTHING RETURNING 1
"""


def _moment(value: Any) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=datetime.UTC)


@cache
def _decoders() -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {}
    for name in named(Part.CLAIM):
        field: Any = Job._meta.get_field(name)
        field = getattr(field, "target_field", field)
        if isinstance(field, UUIDField):
            found[name] = uuid.UUID
        elif isinstance(field, DateTimeField):
            found[name] = _moment
        elif isinstance(field, JSONText):
            found[name] = json.loads
        elif isinstance(field, BooleanField):
            found[name] = bool
    return found


class SQLite(base.Store):
    now = NOW
    has_one_writer = compares = True
    ignoring = ("INSERT OR IGNORE", "")

    def claim(self, claim: Claim) -> list[Job]:
        if claim.order is not None:
            return super().claim(claim)
        words = {"without": ", ".join(["%s"] * len(claim.without))}
        words["only"] = f"AND task IN ({', '.join(['%s'] * len(claim.only))})" if claim.only else ""
        with self.connection.cursor() as cursor:
            ready = (claim.queue, claim.node.hex, claim.queue, *claim.without, *claim.only)
            # Without the write lock: most looks find nothing.
            if cursor.execute(f"SELECT 1 {_READY} LIMIT 1".format(**words), ready).fetchone() is None:
                return []
            sql = _CLAIM.format(**words, columns=", ".join(named(Part.CLAIM)))
            rows = cursor.execute(sql, (claim.token, claim.node.hex, *ready, claim.limit)).fetchall()
        return self.claimed(rows)

    def has_ended(self) -> bool:
        return not self.connection.connection.in_transaction

    decoders = staticmethod(_decoders)

    def write_mutex(self) -> AbstractContextManager[Any]:
        return extensions.instead(base.write_turn)()

    def succeed(self, job: Job, result: Any, runtime: float, is_synced: bool = True) -> bool:
        text = None if result is None else json.dumps(result)
        with self.connection.cursor() as cursor:
            cursor.execute(_SUCCEED, [text, job.pk.hex, job.lease, job.token, job.pk.hex])
            return bool(cursor.rowcount == 1)

    def insert_marker(
        self, key: str, kind: str, fingerprint: str, job: uuid.UUID | None, keep: float | None, wait: float
    ) -> bool:
        return bool(self.ask(_MARK, key, kind, fingerprint, job and job.hex, keep))
