"""What a site's own users may see of a job, or of an extension's row (a batch): its state, and how far it is."""

import uuid
from typing import Any

from django.core.signing import BadSignature, Signer

from jobs.contrib.inspection.view import other, progress_of
from jobs.models import ENDED, Job, State
from jobs.models.values import parse_uuid
from jobs.store import databases

_SALT = "jobs.progress"


def of(each: Any) -> dict[str, Any]:
    """What a site's users may see, as JSON. ``percent`` is None as long as it is unknown."""
    if not isinstance(each, Job):
        found: Any = other(each, "shown")
        return dict(found.shown())
    told, state = progress_of([each]).get(each.pk), State(each.state)
    return {
        "state": state.value,
        "percent": 100 if state == State.SUCCEEDED else told and told.percent,
        "text": told.text if told else "",
        "label": str(state.label),
        "is_over": state in ENDED,
    }


def find(key: uuid.UUID | None) -> Any:
    """The row of a job, or of an extension."""
    if key is None:
        return None
    if (job := databases.first(Job.objects.filter(pk=key))) is not None:
        return job
    found = other(key, "shown")
    return found and found.row


def token_of(each: Any) -> str:
    """A token for a URL that cannot be guessed: it shows this progress, and nothing else."""
    return Signer(salt=_SALT).sign(str(each.pk))


def by_token(token: str) -> Any:
    try:
        # The project may have signed something else with the same salt.
        return find(parse_uuid(Signer(salt=_SALT).unsign(token)))
    except BadSignature:
        return None
