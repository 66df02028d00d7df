"""What holds for jobs that wait: they are published when they are due, and again when their message is lost."""

from __future__ import annotations

from functools import reduce
from operator import or_

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs import databases
from jobs.companion import PRUNE_BUDGET
from jobs.conf import conf
from jobs.lifecycle import is_paused, now_plus
from jobs.maintenance.relay import LONGEST_TICK, MOST_DOUBLINGS, SUSPECTS
from jobs.models import Cancellation, Job, State
from jobs.transport import LEASE
from jobs.verify.rule import SLACK, Rows, Rule, View

#: What a relay changes about a job that waits.
VERSION = ("state", "lease", "run_at", "dispatched_at")


def relay_bound() -> float:
    """From the moment at which a relay should do something until it did."""
    return conf().RELAY_INTERVAL + 3 * len(conf().DATABASES) * LONGEST_TICK + PRUNE_BUDGET + SLACK


def republish_bound() -> float:
    """From the end of a job's grace until another copy of its message is published."""
    return conf().GRACE / 4 + relay_bound()


def _due(using: str, seconds: float) -> Rows:
    """Due for so long, in the order of ``lifecycle.due``."""
    rows = Job.objects.using(using).filter(~is_paused(using))
    then = now_plus(-seconds) if seconds else Now()
    ready = rows.filter(state=State.READY, dispatched_at=None, run_at__lte=then)
    scheduled = rows.filter(state=State.SCHEDULED, run_at__lte=then)
    return Rows(ready.order_by("run_at"), scheduled.order_by("run_at"), version=VERSION)


def _expired(using: str, seconds: float) -> Rows:
    then = now_plus(-seconds) if seconds else Now()
    late = Job.objects.using(using).filter(state__in=(State.SCHEDULED, State.READY), expires_at__lte=then)
    return Rows(late.order_by("expires_at"), version=VERSION)


def _published(using: str, seconds: float) -> QuerySet[Job]:
    """Ready, and published ``seconds`` longer ago than their grace, which doubles with every copy."""
    rows = Job.objects.using(using).filter(
        ~is_paused(using), state=State.READY, dispatched_at__lt=now_plus(-conf().GRACE - seconds)
    )
    over = [
        Q(
            dispatched_at__lt=now_plus(-(conf().GRACE * 2**copies) - seconds),
            **{"republished" if copies < MOST_DOUBLINGS else "republished__gte": copies},
        )
        for copies in range(MOST_DOUBLINGS + 1)
    ]
    return rows.filter(reduce(or_, over)).order_by("dispatched_at")


def _not_started(view: View, using: str) -> Rows:
    """Under a long backlog they wait, and nothing is wrong."""
    return Rows(_published(using, 0.0), version=VERSION)


def _lost(view: View, using: str) -> Rows:
    """Of an old message in an empty queue it can be said for sure: no worker will find it there."""
    old = _published(using, republish_bound())
    lost = [
        old.filter(pk__in=list(old.filter(queue=queue).values_list("pk", flat=True)[:SUSPECTS]))
        for queue in sorted(set(old.order_by().values_list("queue", flat=True).distinct()))
        if view.depth(queue) == 0
    ]
    return Rows(*lost, version=VERSION)


def _noted(using: str, seconds: float) -> Rows:
    """Notes that ask a job to end that does not run."""
    running = Job.objects.using(using).filter(pk=OuterRef("pk"), state=State.RUNNING)
    then = now_plus(-seconds) if seconds else Now()
    return Rows(Cancellation.objects.using(using).filter(~Exists(running), at__lte=then).order_by("at"))


def _hidden(view: View, using: str) -> Rows:
    with databases.side() as side, side.cursor() as cursor:
        # Its consumer renews this all the time, for LEASE seconds each time.
        cursor.execute(f"SELECT id FROM jobs_message WHERE visible_at > {side.now} + %s", [LEASE + SLACK])
        return Rows(keys=[row[0] for row in cursor.fetchall()])


RULES = (
    Rule(
        id="due-published",
        says=_("a job that is due is published"),
        broken=lambda view, using: _due(using, relay_bound()),
        waiting=lambda view, using: _due(using, 0.0),
        bound=relay_bound,
        needs_broker=True,
    ),
    Rule(
        id="lost-published-again",
        says=_("a published job that did not start is published again when its queue is empty"),
        broken=_lost,
        waiting=_not_started,
        bound=republish_bound,
        needs_broker=True,
    ),
    Rule(
        id="expired-cancelled",
        says=_("a job that was not started before it expired is cancelled"),
        broken=lambda view, using: _expired(using, relay_bound()),
        waiting=lambda view, using: _expired(using, 0.0),
        bound=relay_bound,
    ),
    Rule(
        id="cancellation-heeded",
        says=_("a job that was asked to end while it ran does not wait to run again"),
        broken=lambda view, using: _noted(using, relay_bound()),
        waiting=lambda view, using: _noted(using, 0.0),
        bound=relay_bound,
    ),
    Rule(
        id="messages-come-back",
        says=_("a message of the jobs:// broker that a worker holds is hidden for a few seconds at a time"),
        broken=_hidden,
        at_home=True,
    ),
)
