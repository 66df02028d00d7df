"""End what a dead run left behind in the database server: its transaction, and with it its locks.

A process that is paused in its body, or a machine that lost its power, leaves a server process that waits for
the next statement, for hours if TCP keepalive decides. The next run of the job, and web requests, would wait for
its locks.
"""

import logging
import uuid
from collections.abc import Sequence

from django.db import Error

from jobs import store
from jobs.conf.logs import log, logger
from jobs.models import Job
from jobs.store.databases import is_lost

CURE = "GRANT pg_signal_backend, pg_read_all_stats TO {role}, or let all workers log in with the same role"

#: Databases, and roles whose sessions may not be ended there: each pair is logged once.
_told: set[tuple[str, str]] = set()


def end_backends(runs: Sequence[tuple[uuid.UUID, int]], using: str) -> None:
    """End the server processes of runs (job and lease) that are known to be over; the job may have a new run by now."""
    end = getattr(store.of(using), "end_sessions", None)
    if not runs or end is None:
        return
    try:
        ended, kept = end(runs)
    except Error as exc:
        if is_lost(exc, using):
            raise
        logger.error("cannot end the connections of dead runs: %s", exc, extra={"action": "zombie_kept"})
        return
    for own, role in kept:
        if (using, role) in _told:
            continue
        _told.add((using, role))
        text = "the role %s may not end the session of a dead run, which belongs to %s: its locks stay. Cure: %s"
        about = {"action": "zombie_kept", "database": using}
        logger.error(text, own, role, CURE.format(role=own), extra=about)
    for job in Job.objects.using(using).filter(pk__in=ended):
        log(logging.WARNING, job, "left a connection behind, which was ended", "zombie_ended")
