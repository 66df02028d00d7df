"""Which jobs: by id, or by what they have in common."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from jobs.conf import conf
from jobs.models import Job

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d|w)")


@dataclass(frozen=True, slots=True)
class Selection:
    """All jobs that fit everything that is given."""

    states: Sequence[str] = ()
    #: A task's name, or the beginning of one and an asterisk.
    task: str | None = None
    queue: str | None = None
    #: The class of the last error: ``SMTPException``.
    error: str | None = None
    #: Created since then.
    since: datetime.datetime | None = None

    def rows(self, using: str) -> QuerySet[Job]:
        rows = Job.objects.using(using)
        if self.states:
            rows = rows.filter(state__in=self.states)
        if self.task is not None:
            name, star, _ = self.task.partition("*")
            rows = rows.filter(task__startswith=name) if star else rows.filter(task=name)
        if self.queue is not None:
            rows = rows.filter(queue=self.queue)
        if self.error is not None:
            rows = rows.filter(error__type=self.error)
        if self.since is not None:
            rows = rows.filter(created_at__gte=self.since)
        return rows

    def count(self) -> int:
        return sum(self.rows(alias).count() for alias in conf().DATABASES)

    def __iter__(self) -> Iterator[tuple[uuid.UUID, str]]:
        """The ids, each with its database's alias; each job once, whatever becomes of it meanwhile."""
        # One state at a time: together they could not use their partial indexes.
        states: list[str | None] = [*self.states] or [None]
        for alias, state in product(conf().DATABASES, states):
            chosen = self.rows(alias) if state is None else self.rows(alias).filter(state=state)
            last: uuid.UUID | None = None
            while True:
                rows = chosen.order_by("pk").values_list("pk", flat=True)
                page = list((rows if last is None else rows.filter(pk__gt=last))[: conf().BATCH])
                if not page:
                    break
                yield from ((key, alias) for key in page)
                last = page[-1]


def find(key: uuid.UUID, **annotations: Any) -> Any:
    """The job of this id, in whatever database it is, or None."""
    for alias in conf().DATABASES:
        job = Job.objects.using(alias).annotate(**annotations).filter(pk=key).first()
        if job is not None:
            return job
    return None


def moment(text: str) -> datetime.datetime:
    """What people write for "since": ``90min``, ``2h``, ``7d``, ``2026-11-21``, ``2026-11-21 14:30``.

    Raises:
        ValueError: it is none of these.
    """
    if found := _AGE.fullmatch(text.strip()):
        number, unit = found.groups()
        try:
            return timezone.now() - datetime.timedelta(seconds=float(number) * _UNITS[unit])
        except OverflowError:
            raise ValueError(f"{text!r} is before all time") from None
    try:
        day = parse_date(text.strip())
        value = datetime.datetime.combine(day, datetime.time()) if day else parse_datetime(text.strip())
    except ValueError:
        value = None
    if value is None:
        raise ValueError(f"{text!r} is no moment: write 90min, 2h, 7d, 2026-11-21 or '2026-11-21 14:30'")
    return value if timezone.is_aware(value) else timezone.make_aware(value)
