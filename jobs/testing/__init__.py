"""How a project tests its tasks: run what waits, look at what was enqueued, and kill a run wherever it can die.

It needs neither a broker nor a worker. A run takes the same path as in a worker: claim, body, completion, follow-ups.
"""

from jobs.lifecycle.isolation import isolation
from jobs.testing.crash import NotIdempotent, assert_idempotent
from jobs.testing.fits import assert_fits
from jobs.testing.inline import Runs, assert_enqueued, assert_not_enqueued, capture_jobs, run_jobs

__all__ = [
    "NotIdempotent",
    "Runs",
    "assert_enqueued",
    "assert_fits",
    "assert_idempotent",
    "assert_not_enqueued",
    "capture_jobs",
    "isolation",
    "run_jobs",
]
