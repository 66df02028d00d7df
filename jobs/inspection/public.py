"""What a site's own users may see of a job, or of a batch: its state, and how far it is."""

import uuid
from typing import Any

from django.core.signing import BadSignature, Signer
from django.utils.translation import gettext

from jobs.calling import batches, progress
from jobs.database import databases
from jobs.models import ENDED, UNSUCCESSFUL, Batch, Job, State
from jobs.models.values import parse_uuid

_SALT = "jobs.progress"


def of(each: Job | Batch) -> dict[str, Any]:
    """What may be seen, as JSON: ``percent`` is None while nobody knows. A batch is ``running`` until all ended."""
    if isinstance(each, Batch):
        counts, label, is_over = batches.counts(each), each.name, each.ended_at is not None
        ended, total = sum(counts.get(state, 0) for state in ENDED), sum(counts.values())
        has_failed = any(counts.get(state) for state in UNSUCCESSFUL)
        state = State.RUNNING if not is_over else State.FAILED if has_failed else State.SUCCEEDED
        text = gettext("%(ended)s of %(total)s") % {"ended": ended, "total": total}
        percent: int | None = 100 if is_over else min(99, 100 * ended // max(1, total))
    else:
        said, state, is_over = progress.of([each]).get(each.pk), State(each.state), each.state in ENDED
        text, label = said.text if said else "", str(state.label)
        percent = 100 if state == State.SUCCEEDED else said and said.percent
    return {"state": state.value, "percent": percent, "text": text, "label": label, "is_over": is_over}


def may_look(user: Any) -> bool:
    """Whether somebody may see all jobs, whatever label the project gave this app."""
    return bool(user.has_perm(f"{Job._meta.app_label}.view_job"))


def find(key: uuid.UUID | None) -> Job | Batch | None:
    if key is None:
        return None
    return databases.first(Job.objects.filter(pk=key)) or databases.first(Batch.objects.filter(pk=key))


def token_of(each: Job | Batch) -> str:
    """A token for an address that nobody can guess; whoever has it may see this progress, and nothing else."""
    return Signer(salt=_SALT).sign(str(each.pk))


def by_token(token: str) -> Job | Batch | None:
    try:
        # Whoever uses the same salt may have signed something else.
        return find(parse_uuid(Signer(salt=_SALT).unsign(token)))
    except BadSignature:
        return None
