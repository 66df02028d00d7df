"""Events between services: told with the commit, handled exactly once.

``event`` declares what a service tells of, and ``handler`` what a service does about it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.events.declare import EventType, Handled, event, handler

PART_OF = ("jobs.contrib.listening", "jobs.contrib.messages", "jobs.contrib.operations")
SETTINGS = ("RETENTION_EVENTS",)

__all__ = ["EventType", "Handled", "event", "handler"]


def __getattr__(name: str) -> Any:
    # The core reads this package's tables and doors before there are any tasks.
    if name in __all__:
        from jobs import models  # noqa: F401  (they read this package's, and not the other way round)

        return getattr(import_module(f"{__name__}.declare"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
