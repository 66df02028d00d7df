"""The job that tells of another job's end."""

from __future__ import annotations

from typing import Any

from jobs import task
from jobs.contrib.canvas import followups, same  # noqa: F401  (registers its task)


@task(
    bind=True,
    name="jobs.ended",
    ignore_result=True,
    # A result backend of the project's own may be away.
    autoretry_for=(Exception,),
    max_retries=30,
    retry_backoff=True,
    retry_backoff_max=600,
)
def ended(self: Any, job_id: str, lease: int, only_errbacks: bool = False) -> None:
    """Call what waits for the end of a job, unless the job was retried since."""
    followups.tell_of(self.app, self.job._state.db, job_id, lease, only_errbacks)
