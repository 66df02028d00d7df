"""Whether prune keeps up with what ends."""

from __future__ import annotations

import datetime

from django.db.models import Min

from jobs import store
from jobs.conf import conf
from jobs.contrib.pruning import prune
from jobs.lifecycle.transitions import now_plus
from jobs.models import Job

#: Seconds after which an old job that is still there is a problem. (After its marker, a job goes with the next walk.)
LATE = 2 * prune.FULL_WALK


def behind(using: str) -> datetime.datetime | None:
    """The end of the oldest job that should have been deleted :data:`LATE` seconds ago; None: prune keeps up.

    Prune comes last to what ended last. So one batch of those decides, and one batch of the oldest says since when.
    """
    jobs, found = Job.objects.using(using), None
    for order in ("-finished_at", "finished_at") if (ages := prune.retentions(using).values()) else ():
        late = jobs.filter(finished_at__lt=now_plus(-min(ages) - LATE)).order_by(order)
        keys = list(late.values_list("pk", flat=True)[: conf().BATCH])
        over = jobs.filter(prune.is_over(using), store.of(using).among("pk", keys))
        if (at := prune.unneeded(over if keys else jobs.none(), using).aggregate(at=Min("finished_at"))["at"]) is None:
            break
        found = at
    return found
