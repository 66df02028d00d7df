"""What of a job's arguments and result people may see, in the admin and by the commands."""

from typing import Any

from django.utils.module_loading import import_string

from jobs.conf import celery_app, conf
from jobs.conf.logs import logger
from jobs.models import Event, Job
from jobs.models.values import decoded

HIDDEN = "(hidden: JOBS['REDACT'] failed)"  #: What stands for a value that could not be redacted.

#: Options that bear arguments of other calls; headers that bear those of this one.
ARGUMENTS, TEXTS = ("link", "link_error", "chain", "chord", "stamps"), ("argsrepr", "kwargsrepr")


def data_of(event: Event) -> dict[str, Any]:
    """An event's data: the redaction gets its name in place of a task's."""
    if event.problem is not None and conf().REDACT is not None and set(event.data) == {"body"}:
        # A message that is no event: nobody knows what is in its text.
        return {"body": HIDDEN}
    return Shown(Job.of({"task": event.name, "kwargs": event.data})).kwargs


def args_of(event: Event) -> list[Any]:
    """The values without a name that came with an event of Celery's message format."""
    return Shown(Job.of({"task": event.name, "args": event.headers.get("args", [])})).args


class Shown:
    """A job's values as ``JOBS["REDACT"]`` leaves them, each when it is asked for. What it fails at is hidden."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.path = conf().REDACT

    @property
    def args(self) -> list[Any]:
        names = [] if self.path is None else _names(self.job)
        args = self.job.args if isinstance(self.job.args, list) else [HIDDEN]
        names += map(str, range(len(names), len(args)))
        return list(map(self._redacted, names, args))

    @property
    def kwargs(self) -> dict[str, Any]:
        # Somebody may have edited the row by hand.
        kwargs = self.job.kwargs if isinstance(self.job.kwargs, dict) else {"?": HIDDEN}
        return {name: self._redacted(name, value) for name, value in kwargs.items()}

    @property
    def result(self) -> Any:
        return None if self.job.result is None else self._redacted("result", self.job.result)

    @property
    def cursor(self) -> Any:
        return None if self.job.cursor is None else self._redacted("cursor", self.job.cursor)

    @property
    def options(self) -> Any:
        """Without links, chains and chords, which bear arguments, and without Celery's texts of them."""
        return self.job.options if self.path is None else _without(self.job.options, *ARGUMENTS)

    def _redacted(self, name: str, value: Any) -> Any:
        value = decoded(value)
        if self.path is None:
            return value
        if self.job.task == "jobs.send":
            # The arguments of another task.
            return HIDDEN
        try:
            return import_string(self.path)(self.job.task, name, value)
        except Exception:
            # The value is not shown, and the page is.
            logger.exception("JOBS['REDACT'] failed", extra={"action": "redact_failed", "job": str(self.job.pk)})
            return HIDDEN


def _without(values: Any, *names: str) -> Any:
    if not isinstance(values, dict):
        return HIDDEN
    found = values | {name: HIDDEN for name in names if name in values}
    return found | {"headers": _without(values["headers"], *TEXTS)} if "headers" in values else found


def _names(job: Job) -> list[str]:
    """The names of the positional arguments, as far as this process knows the task."""
    task: Any = getattr(celery_app(), "tasks", {}).get(job.task)
    if not getattr(task, "is_transactional", False):
        return []
    parameters = task.body_signature.parameters.values()
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    rest = [each.name for each in parameters if each.kind is each.VAR_POSITIONAL]
    return names + rest * len(job.args)
