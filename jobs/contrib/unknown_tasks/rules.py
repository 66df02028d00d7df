"""What must be true of jobs of unknown tasks: they go on when there is a worker that knows their task."""

from datetime import UTC, timedelta

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.contrib.unknown_tasks.parking import TASK
from jobs.contrib.verify.rules import Rows, Rule, Search
from jobs.lifecycle.transitions import PARKED
from jobs.models import AWAITING


@Rule(
    "known-let-go",
    _("a job that waits for a worker that knows its task is let go when there is one"),
    "poll",
    waiting=lambda search: [search.jobs.filter(AWAITING, run_at=PARKED)],
)
def known(search: Search) -> Rows:
    """A worker looks from its start on. ``error`` says when the job was put aside, in this form."""
    late = (timezone.now() - timedelta(seconds=search.seconds)).astimezone(UTC).isoformat()
    parked = search.jobs.filter(AWAITING, run_at=PARKED, error__at__lte=late)
    found = Q(pk__in=())
    for worker in search.view.working if parked.exists() else ():
        if worker.takes_jobs and worker.age.total_seconds() > search.seconds:
            found |= Q(waits_for__in=[TASK + task for task in worker.tasks], queue__in=worker.queues)
    return [parked.filter(found)]
