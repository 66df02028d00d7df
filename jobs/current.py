"""Which run the calling code is part of, however deep in a body it is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.board import Slot
    from jobs.models import Job
    from jobs.run import Run

#: The job that the worker is about to run, and the slot in which it says so; Celery's tracer stands in between.
claimed: ContextVar[tuple[Job, Slot] | None] = ContextVar("jobs.claimed", default=None)

_run: ContextVar[Run | None] = ContextVar("jobs.current", default=None)


def run() -> Run | None:
    """The run of the job that runs here; None outside of runs, and in threads that a body started."""
    return _run.get()


def take_claimed() -> tuple[Job, Slot] | None:
    """The job that this call is to run; None if the worker was given a message."""
    here = claimed.get()
    claimed.set(None)
    return here


def job() -> Job | None:
    """The job that runs here, as it was claimed."""
    here = _run.get()
    return None if here is None else here.job


@contextmanager
def running(here: Run) -> Iterator[None]:
    before = _run.set(here)
    try:
        yield
    finally:
        _run.reset(before)
