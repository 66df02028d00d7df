"""What ``verify`` asks about external calls. No query can say whether one happened: it is shown, and breaks nothing."""

from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from jobs.contrib.effects.models import Effect
from jobs.contrib.effects.rows import unsettled
from jobs.contrib.verify.rules import Rows, Rule, Search


@Rule(
    "effects-settled",
    _("an external call was begun by a run, and what became of it is known (else its job or a person finds out)"),
    waiting=lambda search: [unsettled(search.using)],
)
def begun_by_no_run(search: Search) -> Rows:
    later = search.jobs.filter(pk=OuterRef("job"), lease__lt=OuterRef("lease"))
    open_ones = Effect.objects.using(search.using).exclude(state=Effect.State.SENT)
    return [open_ones.filter(Q(lease__lt=1) | Exists(later))]
