"""What must be true of batches: each ends when its jobs have, and says how many there were."""

from django.db.models import Count, Exists, OuterRef
from django.utils.translation import gettext_lazy as _

from jobs.contrib.batches.models import Batch
from jobs.contrib.verify.rules import HISTORY, Rows, Rule, Search
from jobs.lifecycle.transitions import now_plus
from jobs.models import LIVE

READ = 1000  #: How many batches are read.


@Rule("batch-ended", _("a batch whose jobs have all ended is closed, and what follows it is called"), "poll")
def open_without_a_job(search: Search) -> Rows:
    of_it = search.jobs.filter(batch=OuterRef("pk"))
    live, late = of_it.filter(state__in=LIVE), of_it.filter(finished_at__gt=search.since)
    open_ones = Batch.objects.using(search.using).filter(ended_at=None, made_at__lte=search.since)
    return [open_ones.filter(~Exists(live), ~Exists(late))]


@Rule("batch-counts", _("a batch that has ended has no job that may still run, and none that it did not count"))
def miscounted(search: Search) -> Rows:
    """Among the newest that ended within a day. Fewer jobs than were counted are no mistake: prune deletes them."""
    rows = Batch.objects.using(search.using).filter(ended_at__gt=now_plus(-86400)).order_by("-pk")
    counted, size = {}, 0
    for batch in rows[:READ]:
        counted[batch.pk] = batch.counts
        size += sum(batch.counts.values())
        if size > HISTORY:
            break
    found = search.jobs.filter(batch__in=counted).order_by().values_list("batch", "state").annotate(count=Count("*"))
    wrong = {key for key, state, count in found if count > counted[key].get(state, 0)}
    # Race: a retry may have opened a batch again.
    return [rows.filter(pk__in=wrong)]
