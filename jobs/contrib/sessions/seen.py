"""The sessions that are in the way of a job, as far as the server tells."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jobs import store
from jobs.models import Job


def sessions(using: str, question: str, value: Any) -> list[tuple[int, str, str, float]]:
    """The sessions that are in the way: session, application, its state, and its seconds.

    Parameters:
        question: ``locks`` (they lock this job's row), ``blocks`` (they block this session), ``old`` (seconds).
    """
    ask = getattr(store.of(using), "sessions", None)
    return [] if ask is None else ask(question, value)


def watched(using: str, job: Job, seconds: float) -> AbstractContextManager[list[Any]]:
    """Yields a list: not empty if the block still waits for the run after so many seconds (it is paused, say).

    If it is empty, the run's connection may be busy with another, unrelated job of the same claim.
    """
    watch = getattr(store.of(using), "watched", None)
    return nullcontext([]) if watch is None else watch(job, seconds)
