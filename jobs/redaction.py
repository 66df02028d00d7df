"""What of a job's arguments and result people may see, in the admin and by the commands."""

from __future__ import annotations

import logging
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

#: Options that bear arguments of other calls; headers that bear those of this one.
ARGUMENTS, TEXTS = ("link", "link_error", "chain", "chord", "stamps"), ("argsrepr", "kwargsrepr")


class Shown:
    """A job's values as ``JOBS["REDACT"]`` leaves them, each when it is asked for. What it fails at is hidden."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_whole = conf().REDACT is None

    @property
    def args(self) -> list[Any]:
        if self.is_whole:
            return list(self.job.args)
        names = _names(self.job)
        names += map(str, range(len(names), len(self.job.args)))
        return [_redacted(self.job, name, value) for name, value in zip(names, self.job.args, strict=False)]

    @property
    def kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = self.job.kwargs
        return kwargs if self.is_whole else {name: _redacted(self.job, name, kwargs[name]) for name in kwargs}

    @property
    def result(self) -> Any:
        is_plain = self.is_whole or self.job.result is None
        return self.job.result if is_plain else _redacted(self.job, "result", self.job.result)

    @property
    def options(self) -> Any:
        """Without links, chains and chords, which bear arguments, and without Celery's texts of them."""
        options = self.job.options
        return options if self.is_whole else _without(options, *ARGUMENTS)


def _without(values: Any, *names: str) -> Any:
    if not isinstance(values, dict):
        return HIDDEN
    found = values | {name: HIDDEN for name in names if name in values}
    return found | {"headers": _without(values["headers"], *TEXTS)} if "headers" in values else found


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
