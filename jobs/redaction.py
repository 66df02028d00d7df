"""What of a job's arguments and result people may see, in the admin and by the commands."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from jobs.conf import conf
from jobs.keys import signature_of
from jobs.models import Job
from jobs.project import celery_app

logger = logging.getLogger("jobs")

#: What stands for a value that could not be redacted.
HIDDEN = "(hidden: JOBS['REDACT'] failed)"


@dataclass(frozen=True, slots=True)
class Shown:
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any
    options: dict[str, Any]
    headers: dict[str, Any]


def shown(job: Job) -> Shown:
    """The arguments and the result as ``JOBS["REDACT"]`` leaves them. What it fails at is hidden."""
    if conf().REDACT is None:
        return Shown(job.args, job.kwargs, job.result, job.options, job.headers)
    names = _names(job)
    names += map(str, range(len(names), len(job.args)))
    return Shown(
        [_redacted(job, name, value) for name, value in zip(names, job.args, strict=False)],
        {name: _redacted(job, name, value) for name, value in job.kwargs.items()},
        None if job.result is None else _redacted(job, "result", job.result),
        # Links, chains and chords with their arguments; and Celery's texts of the job's own.
        _without(job.options, "embed"),
        _without(job.headers, "argsrepr", "kwargsrepr"),
    )


def _without(values: Any, *names: str) -> Any:
    if not isinstance(values, dict):
        return HIDDEN
    return values | {name: HIDDEN for name in names if name in values}


def _redacted(job: Job, name: str, value: Any) -> Any:
    try:
        return _function(str(conf().REDACT))(job.task, name, value)
    except Exception:
        # Neither shown nor a reason to have no page.
        logger.exception("JOBS['REDACT'] failed", extra={"action": "redact_failed", "job": str(job.pk)})
        return HIDDEN


def _names(job: Job) -> list[str]:
    """The names of the positional arguments, as far as this process knows the task."""
    app = celery_app()
    task = app and app.tasks.get(job.task)
    if task is None or not getattr(task, "is_transactional", False):
        return []
    names: list[str] = []
    for parameter in signature_of(type(task)).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return [*names, *[parameter.name] * len(job.args)]
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names


@cache
def _function(path: str) -> Any:
    return import_string(path)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBS":
        _function.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobs.redaction")
