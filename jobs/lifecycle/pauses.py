"""Pause and resume a queue, for every worker at once, and over restarts.

Nobody claims a job of a paused queue. What runs goes on. Jobs are enqueued, come due and expire as before.
"""

from django.utils.translation import gettext

from jobs.conf import conf
from jobs.models import Pause
from jobs.models.values import scrub


def check_name(queue: str) -> None:
    """Raise ``ValueError``, in the reader's language, if no queue can be called so."""
    if not 0 < len(queue) <= 255 or "\0" in queue:
        says = gettext("Name a queue, in 1 to %(number)s characters, none of them NUL.")
        raise ValueError(says % {"number": 255})


def pause(queue: str, by: str = "", reason: str = "") -> bool:
    """False: it is paused already, and stays as it was. ``ValueError``: no such queue can be."""
    check_name(queue)
    row = {"by": scrub(by, 150), "reason": scrub(reason, 1000)}
    done = [Pause.objects.using(alias).get_or_create(pk=queue, defaults=row)[1] for alias in conf().DATABASES]
    return any(done)


def resume(queue: str) -> bool:
    """False: it is not paused."""
    done = [Pause.objects.using(alias).filter(pk=queue).delete()[0] for alias in conf().DATABASES]
    return any(done)


def paused() -> dict[str, Pause]:
    """The paused queues, by name."""
    rows = [row for alias in conf().DATABASES for row in Pause.objects.using(alias).all()]
    return {row.queue: row for row in sorted(rows, key=lambda row: row.queue)}
