"""What has an id like a job's, and is none; and how far jobs are."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jobs import extensions
from jobs.models import Job


class Other(NamedTuple):
    """What has an id like a job's, and is none (``Extension.other``)."""

    row: Any
    #: Its page: the label of a link, the name of the URL, and its values.
    page: tuple[Any, ...]
    #: How far it is, as ``contrib/progress`` tells it of a job; and why it has not ended. None: it has no end.
    shown: Callable[[], dict[str, Any]] | None = None
    reasons: Callable[[], Iterable[Any]] | None = None


def other(what: Any, part: str) -> Other | None:
    """The extension's row of this id, if it has that part."""
    found = (look(what) for look in extensions.through("other"))
    return next((each for each in found if each is not None and getattr(each, part) is not None), None)


def said(jobs: Iterable[Job], is_veiled: bool = True) -> dict[uuid.UUID, Any]:
    """What the last run of each has said of how far it is, as people may see it."""
    found: dict[uuid.UUID, Any] = {}
    for progress in extensions.through("progress"):
        found |= (progress.of if is_veiled else progress.as_said)(jobs)
    return found
