"""What people may see of a job's values, wherever they look: all of it, unless ``JOBS["REDACT"]`` keeps some back."""

from collections.abc import Iterable
from typing import Any

from jobs.conf import celery_app, conf
from jobs.models import Job
from jobs.models.values import decoded

HIDDEN = "(hidden: JOBS['REDACT'] failed)"  #: Shown for a value if it is not known whether people may see it.
BLANK = "***"  #: Shown in a text for the value of an argument that people may not see.


class Shown:
    """A job's values as people may see them. A person may have edited the row by hand."""

    is_whole = True  #: Nothing is kept back.

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def args(self) -> list[Any]:
        return decoded(self.job.args) if isinstance(self.job.args, list) else [HIDDEN]

    @property
    def kwargs(self) -> dict[str, Any]:
        kwargs = self.job.kwargs if isinstance(self.job.kwargs, dict) else {"?": HIDDEN}
        return {name: decoded(value) for name, value in kwargs.items()}

    @property
    def arguments(self) -> str:
        """Both, as a call has them."""
        return ", ".join([*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())])

    @property
    def result(self) -> Any:
        return self.value("result", self.job.result)

    @property
    def cursor(self) -> Any:
        return self.value("cursor", self.job.cursor)

    @property
    def options(self) -> Any:
        return self.job.options

    def value(self, name: str, value: Any) -> Any:
        """A value that is no argument. It may contain one."""
        return decoded(value)

    def text(self, name: str, text: Any) -> str:
        """A text; ``name`` says what it is: an ``"error"``, a ``"key"`` or a ``"progress"``."""
        return str(text)

    def error(self, entry: Any) -> Any:
        """An entry of ``Job.errors``. It may have any shape."""
        return decoded(entry)

    def blanked(self, text: str) -> str:
        """The text without the values of arguments that are not shown as they are."""
        return text

    @classmethod
    def veil(cls, rows: Iterable[Any]) -> None:
        """See :func:`veil`."""


def shown(job: Job) -> Shown:
    return _kind()(job)


def seen(job: Job) -> Any:
    """What has ``args`` and ``kwargs`` that people may see: the job itself, if they may see all."""
    return job if conf().REDACT is None else shown(job)


def shown_key(job: Job) -> str:
    """The unique key, in texts that are stored."""
    return shown(job).text("key", job.unique_key)


def names_of(task: str, count: int) -> list[str]:
    """The names of a call's ``count`` positional arguments; empty if this process does not know the task."""
    known: Any = getattr(celery_app(), "tasks", {}).get(task)
    if not getattr(known, "is_transactional", False):
        return []
    parameters = known.body_signature.parameters.values()
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    rest = [each.name for each in parameters if each.kind is each.VAR_POSITIONAL]
    return (names + rest * count)[:count]


def veil(rows: Iterable[Any]) -> None:
    """Take what people may not see out of the errors and keys of one table's rows, which are shown and never saved."""
    _kind().veil(rows)


def _kind() -> type[Shown]:
    if conf().REDACT is None:
        return Shown
    from jobs.contrib.redaction.redacted import Redacted

    return Redacted
