"""How a job ended, for those who wait for it: its exception, made again from its row; and what ended in its place."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Mapping
from typing import Any

import celery.exceptions

from jobs import errors
from jobs.errors import for_celery
from jobs.models import UNSUCCESSFUL, Job
from jobs.models.values import decoded

#: The modules in which an exception's class is looked up if the row holds only its name: no body raised it.
_MODULES = (builtins, celery.exceptions, errors)


def exception_of(error: Mapping[str, Any], backend: Any) -> Exception:
    """The exception that ended a job, made again from its row as Celery's backends do it."""
    module, name = class_of(error)
    message = decoded(error.get("args", error.get("message")))
    made = backend.exception_to_python({"exc_type": name, "exc_module": module or None, "exc_message": message})
    # An exception that would end the waiting caller's process becomes a failure, as in the worker.
    return for_celery(made)


def class_of(error: Mapping[str, Any]) -> tuple[str, str]:
    """The module and the name of the class of the exception; an empty module if it is not known."""
    kind = str(error.get("type") or "Exception")
    module, _, name = str(error.get("class") or "").partition(":")
    if not name:
        known = (each.__name__ for each in _MODULES if isinstance(getattr(each, kind, None), type))
        module, name = next(known, ""), kind
    return module, name


def instead_of(key: uuid.UUID, heir: uuid.UUID | None, using: str) -> Job | None:
    """The job by which a replaced one ends: its heir, or what failed before that; None: there is none yet.

    Parameters:
        heir: its ``replay_of``: the last call of what replaced it.
    """
    jobs = Job.objects.using(using)
    if heir is not None:
        return jobs.filter(pk=heir).first()
    # Of a chain or a chord only the last call gets the id of the replaced job, and nothing calls it after a failure.
    seen: set[uuid.UUID] = set()
    level = {key}
    while level:
        seen |= level
        before = jobs.filter(parent_id__in=level, options__replaced_task_nesting__isnull=False).exclude(pk__in=seen)
        if (failed := before.filter(state__in=UNSUCCESSFUL).first()) is not None:
            return failed
        level = set(before.values_list("pk", flat=True))
    return None
