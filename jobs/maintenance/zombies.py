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
from jobs.database.roles import CURE, MAY_END, logged_in
from jobs.models import Job

#: The claim recorded the server process. It is left alone if another run uses the same connection by now: that of a
#: run that was killed may be at the next job of the same claim.
_RUNS = """
SELECT j.id, j.backend, j.started_at FROM jobs_job j
WHERE j.id = ANY (%s::uuid[]) AND j.state IN ('running', 'cancelled') AND j.backend IS NOT NULL
  AND (j.id, j.lease) IN (SELECT * FROM unnest(%s::uuid[], %s::int[]))
  AND NOT EXISTS (
    SELECT 1 FROM jobs_job o WHERE o.state = 'running' AND o.backend = j.backend
      AND (o.started_at > j.started_at OR (o.started_at = j.started_at AND j.state = 'cancelled'))
  )
"""

#: It is ended if it is in a transaction, and older than the claim: else its number was used again.
_END = f"""
SELECT run.id, current_user::text, a.usename::text, may.end_it, CASE
    WHEN may.end_it AND a.state <> 'idle' AND a.backend_start <= run.started_at THEN pg_terminate_backend(a.pid) END
FROM unnest(%s::uuid[], %s::int[], %s::timestamptz[]) AS run (id, backend, started_at)
JOIN pg_stat_activity a ON a.pid = run.backend
CROSS JOIN LATERAL (SELECT {MAY_END} AS end_it) AS may
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
"""

#: The databases and roles whose sessions stay; each is told of once.
_told: set[tuple[str, str]] = set()


def end_backends(runs: Sequence[tuple[uuid.UUID, int]], using: str) -> None:
    """End the server processes of runs (job and lease) that are known to be over; the job may have another by now."""
    if not runs or connections[using].vendor != "postgresql":
        return
    try:
        keys, leases = (list(each) for each in zip(*runs, strict=True))
        if not (left := ask(using, _RUNS, keys, keys, leases)):
            return
        with logged_in(using):
            found = ask(using, _END, *(list(each) for each in zip(*left, strict=True)))
    except Error as exc:
        if is_lost(exc, using):
            raise
        logger.error("cannot end the connections of dead runs: %s", exc, extra={"action": "zombie_kept"})
        return
    for own, role in {(own, role) for _, own, role, may_end, _ in found if not may_end and (using, role) not in _told}:
        _told.add((using, role))
        text = "the role %s may not end the session of a dead run, which belongs to %s: its locks stay. Cure: %s"
        about = {"action": "zombie_kept", "database": using}
        logger.error(text, own, role, CURE.format(role=own), extra=about)
    for job in Job.objects.using(using).filter(pk__in=[key for key, *_, is_done in found if is_done]):
        log(logging.WARNING, job, "left a connection behind, which was ended", "zombie_ended")
