"""Which run the calling code is part of, however deep in a body it is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jobs.models import Job

_job: ContextVar[Job | None] = ContextVar("jobs.current", default=None)


def job() -> Job | None:
    """The job that runs here, as it was claimed; None outside of runs, and in threads that a body started."""
    return _job.get()


@contextmanager
def running(job: Job) -> Iterator[None]:
    before = _job.set(job)
    try:
        yield
    finally:
        _job.reset(before)
