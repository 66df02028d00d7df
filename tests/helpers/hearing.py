"""What an extension is told of jobs: the core's own tests have no signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jobs import extensions


def listen(hear: Callable[[Any, str], Any]) -> Callable[[], None]:
    """Call ``hear(job, action)`` of all that happens to jobs in this process; returns what ends it."""
    through = extensions.through

    def told(jobs: Any, using: str, action: str) -> None:
        for job in jobs:
            hear(job, action)

    def end() -> None:
        extensions.through = through

    extensions.through = lambda door: (*through(door), told) if door == "happened" else through(door)
    return end


@contextmanager
def hearing(hear: Callable[[Any, str], Any]) -> Iterator[None]:
    end = listen(hear)
    try:
        yield
    finally:
        end()
