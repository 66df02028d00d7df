"""What ``verify`` asks about events."""

from django.utils.translation import gettext_lazy as _

from jobs.contrib.verify.rules import Rows, Rule, Search
from jobs.events.models import UNRELAYED, Event


@Rule("event-handed-on", _("an event that was told of is handed on to its handlers"), "poll")
def waits(search: Search) -> Rows:
    return [Event.objects.using(search.using).filter(UNRELAYED, at__lte=search.since).order_by("pk")]
