"""Transactional, idempotent background jobs for Django and Celery.

The public names are loaded on first use: importing ``jobs`` imports no model, so it is safe in a
``celery.py`` that runs before ``django.setup()``. What type checkers see is ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

from jobs import extensions
from jobs.errors import Busy, Cancel, EffectParked, IdempotencyMismatch, Snooze, UniqueBusy, UniqueTaken

__version__ = "0.1.0"

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
    "asignal",
    "batch",
    "cancel",
    "delete",
    "effect",
    "guard",
    "kill",
    "lock",
    "move",
    "once",
    "retry",
    "signal",
    "signals",
    "tagged",
    "task",
]

extensions.begin()


def __getattr__(name: str) -> Any:
    if name == "Task":
        return import_module(f"{__name__}.task").Task
    if name in ("signals", "task"):
        # The module ``jobs.task`` is the decorator, too.
        return import_module(f"{__name__}.{name}")
    if name in __all__ and (module := extensions.public(__name__).get(name)):
        # The core's models import those of the extension, and not the other way round.
        import_module(f"{__name__}.models")
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
