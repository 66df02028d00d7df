"""The completion: the last statement of a run, which every job costs.

Its race is decided by lease and token: a run whose job was given to another finds no row.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import DataError, connections
from django.db.models import Exists, QuerySet
from django.db.models.functions import Now

from jobs.conf.syncpoints import is_armed
from jobs.database import databases
from jobs.database.sessions import has_begun, session_of
from jobs.models import Cancellation, Job, State

#: The row of a run, by its key. The state is written so that the planner does not take the index of all that runs.
OWNED = "state || '' = 'running'"

#: Zero rows are an error (a division by zero), so that a COMMIT in the same message does not commit.
_SUCCEED = f"""
WITH done AS (
    UPDATE jobs_job
    SET state = 'succeeded', finished_at = statement_timestamp(), result = {{0}}, error = NULL,
        started_at = statement_timestamp() - {{1}} * interval '1 second'
    WHERE id = {{2}} AND {OWNED} AND lease = {{3}} AND token = {{4}}
      AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {{2}})
    RETURNING 1
)
SELECT 1 / count(*) FROM done
"""

_SUCCEED_PREPARED = "(json, float8, uuid, int, bigint) AS" + _SUCCEED.format("$1", "$2", "$3", "$4", "$5")

_SUCCEED_SQLITE = f"""
UPDATE jobs_job SET state = 'succeeded', finished_at = {databases.NOW_SQLITE}, result = %s, error = NULL
WHERE id = %s AND state = 'running' AND lease = %s AND token = %s
  AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = %s)
"""


def owned(job: Job) -> QuerySet[Job]:
    """The fence: the job's row, as long as it is this run's. A zombie, whose job was given to another, finds none."""
    return Job.objects.using(job._state.db).filter(pk=job.pk, state=State.RUNNING, lease=job.lease, token=job.token)


def succeed(job: Job, result: Any, runtime: float, source: Job | None = None) -> bool:
    """The last statement of the body's own transaction, so that effects and completion are one commit.

    On PostgreSQL the COMMIT goes with it, in one message to the server, if the transaction is the body's own.
    False: the job was given to another run, or was asked to end (``lifecycle.heed``).

    Parameters:
        runtime: seconds since the body began; the row was claimed before that, together with others.
        source: the job that had done the work before, if any; the result is its own.
    """
    using = str(job._state.db)
    connection = connections[using]
    # The body may have caught an error that its transaction did not survive.
    connection.validate_no_broken_transaction()
    if source is None and connection.vendor == "postgresql":
        done = _succeed(connection, using, job, result, runtime)
    elif source is None and connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            text = None if result is None else json.dumps(result)
            cursor.execute(_SUCCEED_SQLITE, [text, job.pk.hex, job.lease, job.token, job.pk.hex])
            done = cursor.rowcount == 1
    else:
        ours = owned(job).filter(~Exists(Cancellation.objects.using(using).filter(pk=job.pk)))
        values = {"state": State.SUCCEEDED, "finished_at": Now(), "result": result, "error": None}
        done = ours.update(**values, **({"replay_of": source.pk} if source else {})) == 1
    if done:
        job.__dict__.update(state=State.SUCCEEDED, result=result, error=None)
        # Read from the row when somebody asks for them.
        for computed in ("finished_at", "started_at", "replay_of"):
            job.__dict__.pop(computed, None)
    return done


def _succeed(connection: Any, using: str, job: Job, result: Any, runtime: float) -> bool:
    session = session_of(using)
    text = "NULL" if result is None else "'" + json.dumps(result).replace("'", "''") + "'"
    values = (text, f"{runtime:.6f}", f"'{job.pk}'", str(job.lease), str(job.token))
    begin = commit = ""
    # A savepoint around it: the transaction is somebody else's. A test may want to stop in between.
    is_own = connection.in_atomic_block and not connection.savepoint_ids and not is_armed("after_completion")
    if has_begun(connection):
        commit = "; COMMIT" if is_own else ""
    elif connection.in_atomic_block and not is_own:
        # Else the body executed nothing, and one statement commits by itself; a COMMIT would be warned of.
        begin = "BEGIN; "
    try:
        with session.wrap:
            name = session.prepared(_SUCCEED_PREPARED)
            sql = f"EXECUTE {name}({', '.join(values)})" if name else _SUCCEED.format(*values)
            session.send(begin + sql + commit)
    except DataError as exc:
        if databases.sqlstate(exc) != databases.DIVISION_BY_ZERO:
            raise
        return False
    return True
