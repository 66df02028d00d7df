"""What holds for external calls. Whether a call happened, no query can say: it is shown, and breaks nothing."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from jobs import effects
from jobs.models import Effect, Job
from jobs.verify.rule import Rows, Rule, View


def _unsettled(view: View, using: str) -> Rows:
    return Rows(effects.unsettled(using))


def _without_a_lease(view: View, using: str) -> Rows:
    """Begun under a lease that its job never had."""
    later = Job.objects.using(using).filter(pk=OuterRef("job"), lease__lt=OuterRef("lease"))
    open_ones = Effect.objects.using(using).exclude(state=Effect.State.SENT)
    return Rows(open_ones.filter(Q(lease__lt=1) | Exists(later)))


RULES = (
    Rule(
        id="effects-settled",
        says=_(
            "an external call was begun by a run, and what became of it is known (else its job or a person finds out)"
        ),
        broken=_without_a_lease,
        waiting=_unsettled,
    ),
)
