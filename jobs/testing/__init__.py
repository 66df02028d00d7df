"""How a project tests its tasks: run what waits, look at what was enqueued, and kill a run at every possible place.

It needs no broker and no worker. A run takes the same path as in a worker: claim, body, completion, follow-ups.
"""

from importlib import import_module
from typing import Any

from jobs import extensions

PART_OF = ("jobs.contrib.operations", "jobs.contrib.results")

#: Each public name, and its module: a worker imports none of these modules.
_NAMES = dict.fromkeys(
    ["Runs", "assert_enqueued", "assert_not_enqueued", "capture_jobs", "run_jobs"], f"{__name__}.inline"
) | extensions.public(__name__)

__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if module := _NAMES.get(name):
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
