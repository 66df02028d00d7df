"""What a site's own users may see of a job: its state, and what its body says of its progress."""

from typing import Any

from django.core.signing import BadSignature, Signer

from jobs.arguments import as_uuid
from jobs.calling import progress
from jobs.models import ENDED, Job, State
from jobs.operations.selection import find

_SALT = "jobs.progress"


def of(job: Job) -> dict[str, Any]:
    """As JSON: ``percent`` is None while nobody knows."""
    said = progress.of([job]).get(job.pk)
    percent = 100 if job.state == State.SUCCEEDED else said and said.percent
    text = {"text": said.text if said else "", "label": str(State(job.state).label)}
    return {"state": job.state, "percent": percent, **text, "is_over": job.state in ENDED}


def token_of(job: Job) -> str:
    """For an address that nobody can guess; whoever has it may see this job's progress, and nothing else."""
    return Signer(salt=_SALT).sign(str(job.pk))


def job_of(token: str) -> Job | None:
    try:
        key = as_uuid(Signer(salt=_SALT).unsign(token))
    except BadSignature:
        return None
    return None if key is None else find(key)
