"""Pause and resume a queue, for every worker at once, and over restarts.

No worker claims a job of a paused queue. Running jobs go on. Jobs are enqueued, come due and expire as before.
"""

from jobs.conf import conf
from jobs.contrib.operations.selection import check_queue
from jobs.models import Pause
from jobs.models.values import scrub


def pause(queue: str, by: str = "", reason: str = "") -> bool:
    """False: it is paused already, and stays as it was. ``ValueError``: a queue cannot have this name."""
    check_queue(queue)
    row = {"by": scrub(by, 150), "reason": scrub(reason, 1000)}
    done = [Pause.objects.using(alias).get_or_create(pk=queue, defaults=row)[1] for alias in conf().DATABASES]
    return any(done)


def resume(queue: str) -> bool:
    """False: it is not paused."""
    done = [Pause.objects.using(alias).filter(pk=queue).delete()[0] for alias in conf().DATABASES]
    return any(done)
