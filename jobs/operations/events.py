"""What a person may do to events: replay them."""

import uuid
from collections.abc import Sequence
from contextlib import nullcontext

from celery import current_app
from django.db import transaction

from jobs.arguments import scrub
from jobs.events import replay as replays
from jobs.models import Action


def replay(using: str, keys: Sequence[uuid.UUID], to: str, again: bool, by: str = "", why: str = "") -> dict[str, int]:
    """Replay the events to a service, with a note in the history of each; as ``jobs.events.replay.replay``."""
    # A transaction does not wait for the broker: on SQLite nobody else could write meanwhile.
    is_here = to in replays.services(using)
    with transaction.atomic(using=using) if is_here else nullcontext():
        done = replays.replay(current_app, replays.select(using, keys=keys), to, again)
        says = ": ".join(filter(None, [f"to {to}" + (", once more" if again else ""), why]))
        note = {"what": "replay", "by": scrub(by, 150), "why": scrub(says, 1000)}
        Action.objects.using(using).bulk_create(Action(job=key, **note) for key in keys)
    return done
