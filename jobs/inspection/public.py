"""What a site's own users may see of a job, or of what an extension has: its state, and how far it is."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django.core.signing import BadSignature, Signer

from jobs import extensions
from jobs.models import ENDED, Job, State
from jobs.models.values import parse_uuid
from jobs.store import databases


class Other(NamedTuple):
    """What has an id like a job's, and is none (``Extension.other``)."""

    row: Any
    #: Its page: the label of a link, the name of the URL, and its values.
    page: tuple[Any, ...]
    #: How far it is, as :func:`of` tells it; and why it has not ended. None: it has no end.
    shown: Callable[[], dict[str, Any]] | None = None
    reasons: Callable[[], Iterable[Any]] | None = None


def other(what: Any, part: str) -> Other | None:
    """The extension's row of this id, if it has that part."""
    found = (look(what) for look in extensions.through("other"))
    return next((each for each in found if each is not None and getattr(each, part) is not None), None)


_SALT = "jobs.progress"


def of(each: Any) -> dict[str, Any]:
    """What a site's users may see, as JSON. ``percent`` is None as long as it is unknown."""
    if not isinstance(each, Job):
        found: Any = other(each, "shown")
        return dict(found.shown())
    told, state = said([each]).get(each.pk), State(each.state)
    return {
        "state": state.value,
        "percent": 100 if state == State.SUCCEEDED else told and told.percent,
        "text": told.text if told else "",
        "label": str(state.label),
        "is_over": state in ENDED,
    }


def said(jobs: Iterable[Job], is_veiled: bool = True) -> dict[uuid.UUID, Any]:
    """What the last run of each has said of how far it is, as people may see it."""
    found: dict[uuid.UUID, Any] = {}
    for progress in extensions.through("progress"):
        found |= (progress.of if is_veiled else progress.as_said)(jobs)
    return found


def may_look(user: Any) -> bool:
    """Whether a user may see all jobs, whatever label the project gave this app."""
    return bool(user.has_perm(f"{Job._meta.app_label}.view_job"))


def find(key: uuid.UUID | None) -> Any:
    """The row of a job, or of what an extension has."""
    if key is None:
        return None
    if (job := databases.first(Job.objects.filter(pk=key))) is not None:
        return job
    found = other(key, "shown")
    return found and found.row


def token_of(each: Any) -> str:
    """A token for an address that cannot be guessed: it shows this progress, and nothing else."""
    return Signer(salt=_SALT).sign(str(each.pk))


def by_token(token: str) -> Any:
    try:
        # The project may have signed something else with the same salt.
        return find(parse_uuid(Signer(salt=_SALT).unsign(token)))
    except BadSignature:
        return None
