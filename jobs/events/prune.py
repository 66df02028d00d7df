"""Delete events that are old and done with, and failed jobs of handlers beyond the number that they keep."""

import datetime
import time

from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.functions import Coalesce

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.pruning.prune import FULL_WALK, batch, delete
from jobs.events.models import UNSENT, Event, Subscription
from jobs.lifecycle.transitions import now_plus
from jobs.models import Action, Job, State
from jobs.store import databases

#: For each database: the id up to which this process has come, and when it began.
_walks: dict[str, tuple[int, float]] = {}


def prune(using: str, budget: float) -> None:
    deadline = time.monotonic() + budget
    while conf().RETENTION_EVENTS is not None and _forget(using) and time.monotonic() < deadline:
        pass
    _prune_failed(using, deadline)


def _forget(using: str) -> bool:
    """Delete the next events that are old and done with; False at the end of those that are old.

    Events that have to stay, however many there are, are skipped until the next walk.
    """
    now, rows = time.monotonic(), Event.objects.using(using)
    place, began = _walks.get(using, (0, now))
    # The time of arrival counts: a sender may give any time, and then a second copy would not be recognized.
    rows = rows.annotate(arrived=Coalesce("received_at", "at"))
    age = conf().RETENTION_EVENTS or 0
    over = ExpressionWrapper(Q(arrived__lt=now_plus(-age)), BooleanField())
    # The time has no index.
    some = rows.filter(pk__gt=place).order_by("pk").values_list("pk", over)[: 10 * conf().BATCH]
    old = [key for key, is_old in some if is_old]
    if not old:
        _walks[using] = (0, now) if now - began > FULL_WALK else (place, began)
        return False
    # One moment for both statements.
    before = databases.clock(using) - datetime.timedelta(seconds=age)
    gone = rows.filter(arrived__lt=before, pk__gt=place, pk__lte=old[-1], relayed_at__isnull=False).exclude(UNSENT)
    Action.objects.using(using).filter(job__in=gone.values("uuid"))._raw_delete(using)
    gone._raw_delete(using)
    _walks[using] = (old[-1], began)
    return True


def _prune_failed(using: str, deadline: float = 0.0) -> None:
    """Delete failed jobs of handlers beyond the number that they keep."""
    keep = Subscription.objects.using(using).filter(keep_failed__isnull=False)
    for task, number in keep.values_list("handler", "keep_failed"):
        failed = Job.objects.using(using).filter(task=task, state=State.FAILED).order_by("-pk")
        for needed, _ in extensions.through("needed"):
            failed = failed.exclude(needed(using))
        keys = failed.values_list("pk", flat=True)[number or 0 :][: batch(using)]
        while delete(list(keys.all()), using) and time.monotonic() < deadline:
            pass
