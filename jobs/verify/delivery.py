"""What holds for jobs that wait: they become ready when they are due, and a worker that is free takes them."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs import queues
from jobs.census import heads, in_line, late_after
from jobs.conf import conf
from jobs.lifecycle import now_plus
from jobs.maintenance.clock import LONGEST_TICK
from jobs.models import Cancellation, Job, State
from jobs.verify.rule import SLACK, Rows, Rule, View, mended

#: What changes about a job that waits when somebody does something about it.
VERSION = ("state", "lease", "run_at")


def poll_bound() -> float:
    """From the moment at which a worker should do something until it did."""
    return conf().POLL_INTERVAL + 3 * len(conf().DATABASES) * LONGEST_TICK + SLACK


def _scheduled(view: View, using: str, seconds: float) -> Rows:
    rows = Job.objects.using(using).filter(state=State.SCHEDULED, run_at__lte=now_plus(-seconds))
    return Rows(rows.order_by("run_at"), version=VERSION)


def _expired(view: View, using: str, seconds: float) -> Rows:
    waiting = Job.objects.using(using).filter(state__in=(State.SCHEDULED, State.READY))
    return Rows(waiting.filter(expires_at__lte=now_plus(-seconds)).order_by("expires_at"), version=VERSION)


def _ready(view: View, using: str) -> Rows:
    """Under a long backlog they wait, and nothing is wrong."""
    return _ready_for(using, late_after())


def _not_taken(view: View, using: str) -> Rows:
    return _ready_for(using, poll_bound(), view.served)


def _ready_for(using: str, seconds: float, served: set[str] | None = None) -> Rows:
    """Of a queue that is not paused; stretch by stretch of the index that claims use."""
    paused = queues.paused()
    ready = in_line(using).filter(Q(expires_at=None) | Q(expires_at__gt=Now()))
    late = [
        ready.filter(queue=head.queue, rank=head.rank, run_at__lte=now_plus(-seconds))
        for head in heads(using)
        if head.seconds > seconds and head.queue not in paused and (served is None or head.queue in served)
    ]
    return Rows(*late, version=VERSION)


def _noted(view: View, using: str, seconds: float) -> Rows:
    """Notes that ask a job to end that does not run."""
    running = Job.objects.using(using).filter(pk=OuterRef("pk"), state=State.RUNNING)
    notes = Cancellation.objects.using(using).filter(~Exists(running), at__lte=now_plus(-seconds))
    return Rows(notes.order_by("at"))


RULES = (
    mended(
        id="due-ready",
        says=_("a scheduled job that is due becomes ready"),
        late=_scheduled,
        bound=poll_bound,
    ),
    Rule(
        id="ready-taken",
        says=_("a worker that has a free process takes the ready jobs of its queues"),
        broken=_not_taken,
        waiting=_ready,
        bound=poll_bound,
    ),
    mended(
        id="expired-cancelled",
        says=_("a job that was not started before it expired is cancelled"),
        late=_expired,
        bound=poll_bound,
    ),
    mended(
        id="cancellation-heeded",
        says=_("a job that was asked to end while it ran does not wait to run again"),
        late=_noted,
        bound=poll_bound,
    ),
)
