"""The SQL of durable tasks. PostgreSQL takes a signal in one statement, and ends a step together with its COMMIT."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobs import store
from jobs.contrib.durable.models import Signal, Step
from jobs.models import AWAITING, Job
from jobs.store import databases
from jobs.store.postgresql import json_literal
from jobs.store.sessions import quoted, session_of

#: Check the fence, and that the job was not asked to end (``History._hold``); then write the row. If a check fails,
#: 0 / 0 is an error, and nothing commits.
_DONE = """
WITH own AS MATERIALIZED (
    SELECT id FROM jobs_job
    WHERE id = {0} AND state = 'running' AND lease = {1} AND token = {2}
      AND (NOT {3} OR NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {0}))
      AND (NOT {3} OR statement_timestamp() < COALESCE({10}::timestamptz, 'infinity'))
    FOR UPDATE
)
INSERT INTO jobs_step (job, name, kind, state, lease, result, failures, key, on_cancel, made_at, done_at)
SELECT {0}, {4}, {5}, 'done', {1}, {6}, 0 / (SELECT count(*) FROM own), {7}, {8},
    statement_timestamp() - {9} * interval '1 second', statement_timestamp()
ON CONFLICT (job, name) DO UPDATE SET state = 'done', lease = EXCLUDED.lease, result = EXCLUDED.result, error = NULL,
    key = EXCLUDED.key, on_cancel = EXCLUDED.on_cancel, done_at = EXCLUDED.done_at,
    made_at = CASE WHEN EXCLUDED.kind = 'step' THEN EXCLUDED.made_at ELSE jobs_step.made_at END
"""
_TYPES = "uuid, int, bigint, boolean, text, text, json, text, json, double precision, timestamptz"

#: Race: several jobs wait for signals of one key. Each takes a different signal, and none waits for a lock.
_TAKE = """
UPDATE jobs_signal SET taken_by = {0} WHERE taken_by IS NULL AND id = (
    SELECT id FROM jobs_signal WHERE key = {7} AND taken_by IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING payload
"""


class Gone(Exception):
    """Another job has taken the signal."""


_COLUMNS = [field.attname for field in Step._meta.concrete_fields]


def steps(job_id: uuid.UUID, using: str) -> list[Any]:
    """The steps of a job in their order, each with ``now``: the database's time, in seconds since 1970.

    Each run reads them first, and Django takes longer to compile a query than the database to answer this one.
    """
    at = store.of(using)
    columns = ", ".join(_COLUMNS) if at.writes_at_once else "*"
    sql = f"SELECT {columns}, {at.epoch} AS now FROM jobs_step WHERE job = %s ORDER BY id"
    if not at.writes_at_once:
        own = Step._meta.get_field("job").get_db_prep_value(job_id, connections[using])
        return list(Step.objects.using(using).raw(sql, [own]))
    found: list[Any] = []
    for *values, now in session_of(using).fetch(sql, [job_id]):
        found.append(Step.from_db(using, _COLUMNS, values))
        found[-1].now = now
    return found


def take(key: str, job_id: uuid.UUID, using: str) -> Any:
    """Take the oldest signal of the key, in this transaction; returns its payload as it is kept.

    Raises:
        Gone: there is none.
    """
    found = databases.free(Signal.objects.using(using).filter(key=key, taken_by=None).order_by("pk")).first()
    if found is None or not Signal.objects.using(using).filter(pk=found.pk).update(taken_by=job_id):
        raise Gone(key)
    return found.payload


def write_done(
    job: Job, step: Step, took: float, heeds: bool, deadline: datetime.datetime | None, takes: bool = False
) -> bool | None:
    """Write a step that is done, and commit. False: the fence did not hold; None: this database takes two steps.

    Parameters:
        took: seconds.
        heeds: it is refused if the job was asked to end, or its deadline is over.
        takes: its result is the oldest signal of its key, which it takes by the same statement.

    Raises:
        Gone: there is no such signal.
    """
    at: Any = store.of(str(job._state.db))
    if not at.writes_at_once:
        return None
    own = f"'{job.pk}'", str(job.lease), str(job.token), str(heeds)
    said = quoted(step.name), quoted(str(step.kind)), json_literal(step.result), quoted(step.key)
    last = json_literal(step.on_cancel), f"{took:.6f}", f"'{deadline.isoformat()}'" if deadline else "NULL"
    if not takes:
        return at.write_last(_TYPES, _DONE, (*own, *said, *last), "before_step") is not False
    payload = at.write_last(_TYPES, _taking(_DONE), (*own, *said, *last), "before_step", commits=False)
    if payload is None:
        raise Gone(step.key)
    step.result = json.loads(payload or "null")
    return payload is not False


def _taking(done: str) -> str:
    """The statement of a step, with a signal's payload in place of its result."""
    parts = (")\nINSERT", f"), taken AS ({_TAKE})\nINSERT"), ("{6}", "payload"), ("\nON", " FROM taken\nON")
    for part, instead in parts:
        done = done.replace(part, instead, 1)
    return done + "RETURNING COALESCE(result::text, 'null')"


def awaiting(what: Any, using: str) -> QuerySet[Job]:
    """The jobs that wait for this (``Job.waits_for``)."""
    return Job.objects.using(using).filter(AWAITING, waits_for=what)


def awaiting_any(kind: str, using: str) -> QuerySet[Job]:
    """The jobs whose ``Job.waits_for`` begins with this, such as ``lock:``, read along its index."""
    # The end is this word with its last letter raised: where the database sorts by a language, ":" counts little.
    end = kind[:-2] + chr(ord(kind[-2]) + 1)
    rows = Job.objects.using(using).filter(AWAITING, waits_for__gte=kind, waits_for__lt=end)
    return rows.order_by("waits_for", "id")
