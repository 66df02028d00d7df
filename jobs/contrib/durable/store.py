"""The end of a step in one statement of PostgreSQL, which goes to the server together with its COMMIT."""

from __future__ import annotations

import datetime
from typing import Any

from jobs import store
from jobs.contrib.durable.models import Step
from jobs.models import Job
from jobs.store.postgresql import json_literal
from jobs.store.sessions import session_of

#: The fence, and that nobody asked the job to end (``History._hold``); then the row. 0 / 0 is an error, and nothing
#: commits.
_DONE = """
WITH own AS MATERIALIZED (
    SELECT id FROM jobs_job
    WHERE id = {0} AND state = 'running' AND lease = {1} AND token = {2}
      AND (NOT {3} OR NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {0}))
      AND (NOT {3} OR statement_timestamp() < COALESCE({10}, 'infinity'))
    FOR UPDATE
)
INSERT INTO jobs_step (job, name, kind, state, lease, result, failures, key, on_cancel, made_at, done_at)
SELECT {0}, {4}, {5}, 'done', {1}, {6}, 0 / (SELECT count(*) FROM own), {7}, {8},
    statement_timestamp() - {9} * interval '1 second', statement_timestamp()
"""
_TYPES = "uuid, int, bigint, boolean, text, text, json, text, json, double precision, timestamptz"


def write_done(job: Job, step: Step, took: float, heeds: bool, deadline: datetime.datetime | None) -> bool | None:
    """Insert a step that is done, and commit. False: the fence did not hold; None: this database takes two steps.

    Parameters:
        took: seconds.
        heeds: it is refused if the job was asked to end, or its deadline is over.
    """
    at = store.of(str(job._state.db))
    if not at.writes_at_once:
        return None
    text = session_of(at.using).literal
    own = f"'{job.pk}'", str(job.lease), str(job.token), str(heeds)
    said = text(step.name), text(str(step.kind)), json_literal(step.result), text(step.key)
    write_last: Any = at.write_last  # type: ignore[attr-defined]
    last = json_literal(step.on_cancel), f"{took:.6f}", f"'{deadline.isoformat()}'" if deadline else "NULL"
    return bool(write_last(_TYPES, _DONE, (*own, *said, *last), "before_step"))
