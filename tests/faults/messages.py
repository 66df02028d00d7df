"""Messages delivered more often than once, and in another order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from celery import current_app

from jobs import publisher
from jobs.models import Job


def repeat(jobs: Sequence[Job] | None = None, times: tuple[int, int] = (2, 5)) -> int:
    """Publish copies of the messages of ``jobs`` (all there are), each as often as ``times`` says, in random order."""
    jobs = list(Job.objects.all()) if jobs is None else list(jobs)
    copies = [job for job in jobs for _ in range(random.randint(*times))]
    random.shuffle(copies)
    return _publish(copies)


def reverse() -> int:
    """Publish the messages of all jobs, the newest first."""
    return _publish(list(Job.objects.order_by("-created_at")))


def _publish(jobs: list[Job]) -> int:
    left = publisher.publish(jobs, "default", current_app._get_current_object(), patient=True)
    assert not left, "the broker took all copies"
    return len(jobs)
