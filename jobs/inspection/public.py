"""What a site's own users may see of a job, or of a batch: its state, and how far it is."""

import uuid
from typing import Any

from django.core.signing import BadSignature, Signer
from django.utils.translation import gettext

from jobs.arguments import as_uuid
from jobs.calling import batches, progress
from jobs.models import ENDED, Batch, Job, State
from jobs.operations import selection

_SALT = "jobs.progress"


def of(each: Job | Batch) -> dict[str, Any]:
    """As JSON: ``percent`` is None while nobody knows. A batch is ``running`` until all of its jobs have ended."""
    if isinstance(each, Batch):
        return _of_batch(each)
    said = progress.of([each]).get(each.pk)
    percent = 100 if each.state == State.SUCCEEDED else said and said.percent
    text = {"text": said.text if said else "", "label": str(State(each.state).label)}
    return {"state": each.state, "percent": percent, **text, "is_over": each.state in ENDED}


def _of_batch(batch: Batch) -> dict[str, Any]:
    counts = batches.counts(batch)
    ended, total = sum(counts.get(state, 0) for state in ENDED), sum(counts.values())
    is_over = batch.ended_at is not None
    has_failed = any(counts.get(state) for state in (State.FAILED, State.CANCELLED))
    state = State.RUNNING if not is_over else State.FAILED if has_failed else State.SUCCEEDED
    text = gettext("%(ended)s of %(total)s") % {"ended": ended, "total": total}
    percent = 100 if is_over else min(99, 100 * ended // max(1, total))
    return {"state": state.value, "percent": percent, "text": text, "label": batch.name, "is_over": is_over}


def find(key: uuid.UUID | None) -> Job | Batch | None:
    return None if key is None else selection.find(key) or batches.find(key)


def token_of(each: Job | Batch) -> str:
    """For an address that nobody can guess; whoever has it may see this progress, and nothing else."""
    return Signer(salt=_SALT).sign(str(each.pk))


def by_token(token: str) -> Job | Batch | None:
    try:
        return find(as_uuid(Signer(salt=_SALT).unsign(token)))
    except BadSignature:
        return None
