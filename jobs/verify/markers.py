"""What holds for idempotency keys: a marker is committed with the effects that it stands for, and with their job."""

from __future__ import annotations

from django.db.models import Count, Exists, OuterRef
from django.utils.translation import gettext_lazy as _

from jobs.models import Job, Marker, State
from jobs.verify.rule import Rows, Rule, View


def _twice(view: View, using: str) -> Rows:
    """Only a lost constraint lets a key have two markers."""
    markers = Marker.objects.using(using)
    twice = markers.values("key", "kind").annotate(count=Count("*")).filter(count__gt=1)
    return Rows(keys=twice.order_by().values_list("key", flat=True))


def _without_a_success(view: View, using: str) -> Rows:
    other = Job.objects.using(using).filter(pk=OuterRef("job")).exclude(state=State.SUCCEEDED)
    return Rows(Marker.objects.using(using).filter(Exists(other), kind=Marker.Kind.TASK))


RULES = (
    Rule(
        id="one-marker-per-key",
        says=_("an idempotency key has one marker, so that its effects are committed once"),
        broken=_twice,
    ),
    Rule(
        id="marker-succeeded",
        says=_("the job that left the marker of an idempotency key succeeded"),
        broken=_without_a_success,
    ),
)
