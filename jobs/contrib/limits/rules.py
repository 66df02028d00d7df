"""The rules about limits that hold in every committed state."""

from django.db.models import Count
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.counts import MOST
from jobs.contrib.limits.models import RateLimiter
from jobs.contrib.limits.usage import free
from jobs.contrib.verify.rules import NOT_HELD, Rows, Rule, Search
from jobs.models import HELD

NOT_HELD.append(free)


@Rule("one-job-per-slot", _("no two running jobs have the same slot of a limit, so no limit is exceeded"))
def in_one_slot(search: Search) -> Rows:
    found = []
    for key, slot in (("limit_key", "limit_slot"), ("queue", "queue_slot")):
        rows = search.running.filter(**{f"{slot}__isnull": False}).values(key, slot).annotate(count=Count("*"))
        found += [(name,) for name in rows.filter(count__gt=1).order_by().values_list(key, flat=True)[:MOST]]
    return [found]


@Rule("held-let-in", _("a job that is held back at its limit is on the list of that limit, so it is let in"))
def without_a_rate_limiter(search: Search) -> Rows:
    """A held job is not looked at if it has no limiter, or if its limiter says that no job is held."""
    held = search.jobs.filter(HELD)
    keys = set(held.order_by("queue", "id").values_list("limit_key", flat=True)[:MOST])
    limiters = RateLimiter.objects.using(search.using).filter(pk__in=keys, look_at__isnull=False)
    # Race: a job that is let in meanwhile is no longer held when these rows are read.
    keys -= {*limiters.values_list("pk", flat=True), None}
    return [held.filter(limit_key__in=keys), held.filter(limit_key=None)]
