"""How a project tests its tasks: run what waits, look at what was enqueued, and kill a run wherever it can die.

It needs neither a broker nor a worker. A run takes the same path as in a worker: claim, body, completion, follow-ups.
"""

from importlib import import_module
from typing import Any

from jobs import extensions

#: Each name, and its module: a worker imports none of them.
_NAMES = dict.fromkeys(
    ["Runs", "assert_enqueued", "assert_not_enqueued", "capture_jobs", "run_jobs"], f"{__name__}.inline"
) | extensions.public(__name__)

__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if module := _NAMES.get(name):
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
