"""End what a dead run left behind in the database server: its transaction, and with it its locks.

A process that is paused in its body, or a machine that lost its power, leaves a server process that waits for
the next statement, for hours if TCP keepalive decides. The next run of the job, and web requests, would wait for
its locks.
"""

import logging
import uuid
from collections.abc import Sequence

from django.db import Error, connections

from jobs.conf.logs import log, logger
from jobs.database.databases import ask, is_lost
from jobs.models import Job

#: The claim recorded the server process. It is ended if it is older than the claim (else its number was used
#: again), in a transaction, and no other run uses the same connection by now. That of a run that was killed may be at
#: the next job of the same claim.
_END = """
SELECT j.id, pg_terminate_backend(a.pid)
FROM pg_stat_activity a JOIN jobs_job j ON j.backend = a.pid
WHERE j.id = ANY (%s::uuid[]) AND j.state IN ('running', 'cancelled')
  AND (j.id, j.lease) IN (SELECT * FROM unnest(%s::uuid[], %s::int[]))
  AND a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
  AND a.state <> 'idle' AND a.backend_start <= j.started_at
  AND NOT EXISTS (
    SELECT 1 FROM jobs_job o WHERE o.state = 'running' AND o.backend = j.backend
      AND (o.started_at > j.started_at OR (o.started_at = j.started_at AND j.state = 'cancelled'))
  )
"""


def end_backends(runs: Sequence[tuple[uuid.UUID, int]], using: str) -> None:
    """End the server processes of runs (job and lease) that are known to be over; the job may have another by now."""
    if not runs or connections[using].vendor != "postgresql":
        return
    try:
        keys, leases = (list(each) for each in zip(*runs, strict=True))
        found = ask(using, _END, keys, keys, leases)
        ended = [key for key, is_done in found if is_done]
    except Error as exc:
        if is_lost(exc, using):
            raise
        # Another role's process, say. The locks stay until the server notices by itself.
        logger.error("cannot end the connections of dead runs: %s", exc, extra={"action": "zombie_kept"})
        return
    for job in Job.objects.using(using).filter(pk__in=ended):
        log(logging.WARNING, job, "left a connection behind, which was ended", "zombie_ended")
