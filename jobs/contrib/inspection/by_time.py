"""Jobs in the order of time. Most ids contain the time; jobs with other ids (those of chains) have ``made_at``.

Each kind has its own index, so a list merges two queries. In the same microsecond the first kind comes first.
"""

import datetime
import uuid
from itertools import chain
from typing import NamedTuple

from django.db import connections
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce

from jobs.models import Job
from jobs.models.fields import first_id, time_of


class Place(NamedTuple):
    """Where a job stands in the order of time."""

    at: datetime.datetime
    is_named: bool
    key: uuid.UUID

    @classmethod
    def of(cls, job: Job) -> "Place":
        return cls(job.made_at or time_of(job.pk) or job.run_at, job.made_at is not None, job.pk)

    def beyond(self, is_down: bool, or_here: bool = False) -> tuple[Q, Q]:
        """For each kind, the condition of the jobs after this place, or at it. ``is_down``: towards older jobs."""
        than, here = "lt" if is_down else "gt", "e" if or_here else ""
        if self.is_named:
            later = first_id(self.at + datetime.timedelta(microseconds=1))
            # The index serves the first condition.
            same = Q((f"made_at__{than}", self.at)) | Q((f"pk__{than}{here}", self.key))
            return Q(pk__lt=later) if is_down else Q(pk__gte=later), Q((f"made_at__{than}e", self.at)) & same
        named = Q(made_at__lt=self.at) if is_down else Q(made_at__gte=self.at)
        return Q((f"pk__{than}{here}", self.key)), named


def kinds(rows: QuerySet[Job], is_down: bool = True, after: Place | None = None) -> list[QuerySet[Job]]:
    """The jobs of each kind in the order of time, the newest first if ``is_down``; only those after a place."""
    sign = "-" if is_down else ""
    beyond = after.beyond(is_down) if after else (Q(), Q())
    own = _unnamed(rows.filter(beyond[0])).order_by(f"{sign}pk")
    return [own, rows.filter(beyond[1], made_at__isnull=False).order_by(f"{sign}made_at", f"{sign}pk")]


def _unnamed(rows: QuerySet[Job]) -> QuerySet[Job]:
    """The jobs whose ids contain the time. On MariaDB the index on ``made_at`` has all rows, and must not be used."""
    if connections[rows.db].features.supports_partial_indexes:
        return rows.filter(made_at=None)
    never = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return rows.alias(named=Coalesce("made_at", Value(never))).filter(named=never)


def first(found: list[QuerySet[Job]], number: int, is_down: bool = True) -> list[Job]:
    """The first jobs of all kinds, merged."""
    return sorted(chain.from_iterable(rows[:number] for rows in found), key=Place.of, reverse=is_down)[:number]
