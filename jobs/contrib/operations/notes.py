"""What a person did, as the history of a job keeps it."""

import uuid

from jobs.models import Action
from jobs.models.values import scrub


def signed(text: str, who: str, why: str) -> str:
    """What was done, the person who did it, and why, in one line."""
    return " ".join(filter(None, [text, who and f"by {who}", why and f"({why})"]))


def note(job: uuid.UUID, using: str, what: str, value: str, who: str, why: str) -> None:
    """Write into a job's history what a person did to it."""
    text = ": ".join(filter(None, [value, why]))
    Action.objects.using(using).create(job=job, what=what, by=scrub(who, 150), why=scrub(text, 1000))
