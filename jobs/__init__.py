"""Transactional, idempotent background jobs for Django and Celery.

The public names are loaded on first use: importing ``jobs`` imports no model, so it is safe in a
``celery.py`` that runs before ``django.setup()``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu.transport import TRANSPORT_ALIASES

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jobs import signals as signals
    from jobs.effects import effect as effect
    from jobs.errors import Busy as Busy
    from jobs.errors import Cancel as Cancel
    from jobs.errors import EffectParked as EffectParked
    from jobs.errors import IdempotencyMismatch as IdempotencyMismatch
    from jobs.errors import Snooze as Snooze
    from jobs.errors import UniqueBusy as UniqueBusy
    from jobs.errors import UniqueTaken as UniqueTaken
    from jobs.guards import guard as guard
    from jobs.idempotency import once as once
    from jobs.locks import lock as lock
    from jobs.task import Task as Task

_PUBLIC = {
    "Busy": "jobs.errors",
    "Cancel": "jobs.errors",
    "EffectParked": "jobs.errors",
    "IdempotencyMismatch": "jobs.errors",
    "Snooze": "jobs.errors",
    "Task": "jobs.task",
    "UniqueBusy": "jobs.errors",
    "UniqueTaken": "jobs.errors",
    "effect": "jobs.effects",
    "guard": "jobs.guards",
    "lock": "jobs.locks",
    "once": "jobs.idempotency",
}

__all__ = [
    "Busy",
    "Cancel",
    "EffectParked",
    "IdempotencyMismatch",
    "Snooze",
    "Task",
    "UniqueBusy",
    "UniqueTaken",
    "__version__",
    "effect",
    "guard",
    "lock",
    "once",
    "signals",
]

# kombu accepts no dotted path in a broker URL; this makes ``jobs://`` one that it knows.
TRANSPORT_ALIASES.setdefault("jobs", "jobs.transport:Transport")


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name == "signals":
        return import_module("jobs.signals")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
