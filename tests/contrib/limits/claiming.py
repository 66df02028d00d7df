"""Claims, and ends of runs, for tests of limits."""

from __future__ import annotations

from jobs.contrib.limits.claims import LimitedClaimer
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job

QUEUE = "celery"


def take(size: int = 10, claimer: LimitedClaimer | None = None, queue: str = QUEUE) -> list[str]:
    """Claim, and say by their first arguments what was claimed."""
    return [job.args[0] for job in claim(size, claimer, queue)]


def claim(size: int = 10, claimer: LimitedClaimer | None = None, queue: str = QUEUE) -> list[Job]:
    """Until there are so many, or nothing comes: of a limit one is claimed after the other."""
    claimer, found = claimer or LimitedClaimer(), []
    while len(found) < size and (jobs := claimer.claim("default", queue, worker_state.node, size - len(found))):
        found += jobs
    return found


def end(*keys: object) -> None:
    """The runs are over, however that came."""
    running = [job for job in Job.objects.filter(state="running") if not keys or {*job.args[:1]} & {*keys}]
    assert running
    for job in running:
        assert transitions.fail(job, transitions.error_entry("ValueError", "over"))
