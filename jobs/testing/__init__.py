"""How a project tests its tasks: run what waits, look at what was enqueued, and kill a run wherever it can die.

It needs neither a broker nor a worker. A run takes the same path as in a worker: claim, body, completion, follow-ups.
"""

from importlib import import_module
from typing import Any

from jobs import extensions
from jobs.testing.inline import Runs, assert_enqueued, assert_not_enqueued, capture_jobs, run_jobs

_OF_EXTENSIONS = extensions.public(__name__)

__all__ = [
    "Runs",
    "assert_enqueued",
    "assert_not_enqueued",
    "capture_jobs",
    "run_jobs",
    *_OF_EXTENSIONS,
]


def __getattr__(name: str) -> Any:
    if module := _OF_EXTENSIONS.get(name):
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
