"""What the operator's room shows of batches."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from django.db.models import Max, OuterRef, Subquery
from django.utils import timezone
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.contrib.batches.models import Batch
from jobs.contrib.operator.problem import Kind, Link, Problem, ago
from jobs.models import LIVE, Job
from jobs.store import databases

#: Seconds after which a batch whose last job does not end is a problem; and one that is not closed.
LONG, UNCLOSED = 600.0, 90.0
NAMED = 20  #: At most so many of the oldest are looked at.

KINDS = {
    "unclosed": Kind(
        severity="error",
        many=ngettext_lazy("%(number)s batch cannot end", "%(number)s batches cannot end", "number"),
        place=lambda key: Link(_("Show it"), "batch_change", (key,)),
    ),
    "batch": Kind(
        severity="info",
        many=ngettext_lazy(
            "%(number)s batch waits for its last job", "%(number)s batches wait for their last job", "number"
        ),
        is_fault=False,
        place=lambda key: Link(_("Show the job"), "job_change", (key,)),
    ),
}


def problems(found: dict[str, Any]) -> Iterator[Problem]:
    """The oldest batches that do not end."""
    begin = timezone.now() - datetime.timedelta(seconds=LONG)
    live = Job.objects.filter(batch=OuterRef("pk"), state__in=LIVE).values("pk")
    batches = Batch.objects.filter(ended_at=None).order_by("pk")
    for rows in databases.each(batches.annotate(last=Subquery(live[:1]), other=Subquery(live[1:2]))):
        for batch in rows[:NAMED]:
            if batch.made_at < begin and batch.last is not None and batch.other is None:
                says = gettext("the batch %(name)s waits for its last job") % {"name": batch.name}
                means = gettext("All others have ended. What follows the batch is called when this one has.")
                command = f"manage.py jobs why {batch.last}"
                yield Problem("batch", says, means, command=command, about=batch.last, since=ago(batch.made_at))
            elif batch.last is None:
                of_it = Job.objects.using(batch._state.db).filter(batch=batch.pk)
                since = ago(of_it.aggregate(at=Max("finished_at"))["at"] or batch.made_at)
                if since > UNCLOSED:
                    says = gettext("the batch %(name)s: all jobs have ended, and what follows cannot be called")
                    means = gettext("The log of the workers says why. They try it again every minute.")
                    about: dict[str, Any] = {
                        "about": batch.pk,
                        "since": since,
                        "command": f"manage.py jobs why {batch.pk}",
                    }
                    yield Problem("unclosed", says % {"name": batch.name}, means, **about)
