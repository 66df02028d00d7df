"""What ``verify`` asks about durable tasks: each one that can go on does so."""

from __future__ import annotations

from django.db.models import Exists, OuterRef
from django.db.models.functions import Substr
from django.utils.translation import gettext_lazy as _

from jobs.contrib.durable.history import CHILDREN
from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.durable.signals import SIGNAL
from jobs.contrib.durable.store import awaiting_any
from jobs.contrib.inspection.counts import MOST
from jobs.contrib.verify.rules import Rows, Rule, Search
from jobs.models import LIVE, Job, State
from jobs.models.values import as_uuid

WAIT, WAITING = Step.Kind.WAIT, Step.State.WAITING


@Rule("signal-taken", _("a job that waits for a signal that is there goes on"), "poll")
def with_a_signal(search: Search) -> Rows:
    key = Substr(OuterRef("waits_for"), len(SIGNAL) + 1)
    there = Signal.objects.using(search.using).filter(key=key, taken_by=None, made_at__lte=search.since)
    # A job that was woken for the signal takes it when it runs.
    awake = search.jobs.filter(pk=OuterRef("job"), state__in=(State.READY, State.RUNNING))
    others = Step.objects.using(search.using).filter(Exists(awake), key=key, kind=WAIT, state=WAITING)
    waits = awaiting_any(SIGNAL, search.using).filter(started_at__lte=search.since)
    return [waits.filter(Exists(there), ~Exists(others))]


@Rule("children-awaited", _("a job that waits for children that have all ended goes on"), "poll")
def with_ended_children(search: Search) -> Rows:
    rows = awaiting_any(CHILDREN, search.using).filter(started_at__lte=search.since).values_list("pk", "waits_for")
    batches = {key: as_uuid(str(waits_for).removeprefix(CHILDREN)) for key, waits_for in rows[:MOST]}
    if not batches:
        return []
    # No fault: children run, or ended just now, or a job ``jobs.wake`` is about to wake the parent.
    told = search.jobs.filter(task="jobs.wake", state__in=LIVE).values_list("args", flat=True)[:MOST]
    woken = {as_uuid(args[0]) for args in told if args}
    children = search.jobs.filter(batch__in=[*batches.values()])
    busy = {*children.filter(state__in=LIVE).values_list("batch", flat=True)}
    busy |= {*children.filter(finished_at__gt=search.since).values_list("batch", flat=True)}
    return [search.jobs.filter(pk__in=[key for key, of in batches.items() if of not in busy and key not in woken])]


@Rule("wait-ends-run", _("a run that began to wait did not go on, and so its job did not succeed by it"))
def succeeded_in_a_wait(search: Search) -> Rows:
    done = Job.objects.using(search.using).filter(pk=OuterRef("job"), state=State.SUCCEEDED, lease=OuterRef("lease"))
    return [Step.objects.using(search.using).filter(Exists(done), state=WAITING)]
