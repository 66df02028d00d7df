"""The job that ``manage.py jobs doctor`` uses to test whether jobs are run."""

from typing import Any

from jobs import task


@task(bind=True, name="jobs.probe")
def probe(self: Any) -> str:
    """Do nothing, and return where it ran: ``manage.py jobs doctor`` follows it from the call to the end."""
    return str(self.job.node_id)
