"""The completion: the last statement of a run, which every job costs.

Its race is decided by lease and token: a run whose job was given to another finds no row.
"""

from __future__ import annotations

from typing import Any

from jobs import store
from jobs.models import Job, State
from jobs.store.base import owned as owned


def succeed(job: Job, result: Any, runtime: float, source: Job | None = None) -> bool:
    """The last statement of the body's own transaction, so that effects and completion are one commit.

    False: the job was given to another run, or was asked to end (``transitions.heed``).

    Parameters:
        runtime: seconds since the body began; the row was claimed before that, together with others.
        source: the job that had done the work before, if any; the result is its own.
    """
    at = store.of(str(job._state.db))
    # The body may have caught an error that its transaction did not survive.
    at.connection.validate_no_broken_transaction()
    if done := at.succeed(job, result, runtime) if source is None else at.succeed_as(job, result, source):
        job.__dict__.update(state=State.SUCCEEDED, result=result, error=None)
        # Read from the row when somebody asks for them.
        for computed in ("finished_at", "started_at", "replay_of"):
            job.__dict__.pop(computed, None)
    return done
