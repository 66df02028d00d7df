"""What ended: the tallies of a stretch of time, and the jobs that no worker has counted yet."""

import datetime
import json
from collections import Counter, defaultdict, namedtuple
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db.models import Sum, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from jobs.conf import conf
from jobs.contrib.statistics.counting import HOUR, MINUTE, ended, floor
from jobs.contrib.statistics.models import Tally
from jobs.models import State

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


def counts(rows: Iterable[Row], *names: str) -> Counter[Any]:
    """How many jobs ended, by one column or by several."""
    key, found = attrgetter(*names), Counter[Any]()
    for row in rows:
        found[key(row)] += row.count
    return found


def ever() -> dict[str, Counter[tuple[str, ...]]]:
    """All that was ever counted, by its state: by task and queue, and failures by their errors as well."""
    found: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for alias in conf().DATABASES:
        # The hours that are kept, and the sum of those before them (length 0).
        rows = Tally.objects.using(alias).filter(length__in=(0, 3600))
        for *names, error, state, count in rows.values_list("task", "queue", "error", "state").annotate(Sum("count")):
            found[state][(*names, error) if state == State.FAILED else tuple(names)] += count
    return found
