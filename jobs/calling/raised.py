"""The exception that ended a job, made again from its row."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import celery.exceptions

from jobs import errors
from jobs.errors import for_celery
from jobs.models.values import decoded

#: The modules in which an exception's class is looked up if the row holds only its name: no body raised it.
_MODULES = (builtins, celery.exceptions, errors)


def exception_of(error: Mapping[str, Any], backend: Any) -> Exception:
    """The exception that ended a job, made again from its row as Celery's backends do it."""
    module, name = class_of(error)
    message = decoded(error.get("args", error.get("message")))
    made = backend.exception_to_python({"exc_type": name, "exc_module": module or None, "exc_message": message})
    # An exception that would end the process of the one who waits becomes a failure, as in the worker.
    return for_celery(made)


def class_of(error: Mapping[str, Any]) -> tuple[str, str]:
    """The module and the name of the class of the exception; an empty module if nobody knows it."""
    kind = str(error.get("type") or "Exception")
    module, _, name = str(error.get("class") or "").partition(":")
    if not name:
        known = (each.__name__ for each in _MODULES if isinstance(getattr(each, kind, None), type))
        module, name = next(known, ""), kind
    return module, name
