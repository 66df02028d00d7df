"""What holds of limits, in every committed state."""

from django.db.models import Count
from django.utils.translation import gettext_lazy as _

from jobs.contrib.limits.models import RateLimiter
from jobs.inspection.counts import MOST
from jobs.inspection.verify.rules import Rows, Rule, Search
from jobs.models import HELD


@Rule("one-job-per-slot", _("no two running jobs have the same slot of a limit, so no limit is exceeded"))
def in_one_slot(search: Search) -> Rows:
    found = []
    for key, slot in (("limit_key", "limit_slot"), ("queue", "queue_slot")):
        rows = search.running.filter(**{f"{slot}__isnull": False}).values(key, slot).annotate(count=Count("*"))
        found += [(name,) for name in rows.filter(count__gt=1).order_by().values_list(key, flat=True)[:MOST]]
    return [found]


@Rule("held-let-in", _("whoever lets in a job that is held back at its limit knows of it"))
def without_a_rate_limiter(search: Search) -> Rows:
    """Without a limiter, or if the limiter says that nobody is held, nobody looks at a held job."""
    held = search.jobs.filter(HELD)
    keys = set(held.order_by("queue", "id").values_list("limit_key", flat=True)[:MOST])
    limiters = RateLimiter.objects.using(search.using).filter(pk__in=keys, look_at__isnull=False)
    # Race: a job that is let in meanwhile is not held any more when these rows are read.
    keys -= {*limiters.values_list("pk", flat=True), None}
    return [held.filter(limit_key__in=keys), held.filter(limit_key=None)]
