"""What ended: the tallies of a stretch of time, and the jobs that no worker has counted yet."""

import datetime
import json
from collections import namedtuple
from collections.abc import Iterator
from functools import lru_cache

from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils import timezone

from jobs.conf import conf
from jobs.maintenance.tally import HOUR, MINUTE, ended, floor
from jobs.models import Tally

MOST = 2000  #: At most so many ended jobs are counted for a page, the newest: it takes 30 ms.

#: A named tuple, because making models of them would take most of the page's time.
Row = namedtuple("Row", "begin task queue state error count ran waited")

#: Many histograms are equal, and decoding them took a third of the dashboard's time. Nobody changes a decoded one.
_histogram = lru_cache(10_000)(json.loads)


def of(stretch: datetime.timedelta, begin: datetime.datetime) -> list[Row]:
    """The tallies of this length since then, of all job databases."""
    return [row for alias in conf().DATABASES for row in _of(alias, stretch, begin)]


def _of(using: str, stretch: datetime.timedelta, begin: datetime.datetime) -> Iterator[Row]:
    rows = Tally.objects.using(using).filter(length=stretch.seconds, begin__gte=begin)
    texts = rows.annotate(rans=Cast("ran", TextField()), waits=Cast("waited", TextField()))
    for *names, ran, waited in texts.values_list(*Row._fields[:-2], "rans", "waits"):
        yield Row._make([*names, _histogram(ran), _histogram(waited)])


def last_hour() -> tuple[list[Row], list[Row]]:
    """The last hour by the minute: what was counted, and what was not yet (of very many jobs the newest)."""
    now, counted, rest = timezone.now(), [], []
    begin = floor(now, MINUTE) - HOUR
    for alias in conf().DATABASES:
        rows = list(_of(alias, MINUTE, begin))
        since = max((row.begin for row in rows), default=begin - MINUTE) + MINUTE
        counted += rows
        found = ended(alias, since, now + HOUR, MOST).values()
        rest += [Row(*(getattr(each, name) for name in Row._fields)) for each in found]
    return counted, rest
