"""Jobs in the order of time, whatever their ids: most ids say when, and the others (those of chains) have ``made_at``.

Each kind has an index of its own, so a list is merged of two. Of the same microsecond the first kind comes first.
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
        """The conditions of the jobs after this place, or at it, of each kind. ``is_down``: to the older ones."""
        than, here = "lt" if is_down else "gt", "e" if or_here else ""
        if self.is_named:
            later = first_id(self.at + datetime.timedelta(microseconds=1))
            # The index serves the first condition.
            same = Q((f"made_at__{than}", self.at)) | Q((f"pk__{than}{here}", self.key))
            return Q(pk__lt=later) if is_down else Q(pk__gte=later), Q((f"made_at__{than}e", self.at)) & same
        named = Q(made_at__lt=self.at) if is_down else Q(made_at__gte=self.at)
        return Q((f"pk__{than}{here}", self.key)), named


def kinds(rows: QuerySet[Job], is_down: bool = True, after: Place | None = None) -> list[QuerySet[Job]]:
    """The jobs of each kind in the order of time, the newest first if ``is_down``; those after a place."""
    sign = "-" if is_down else ""
    beyond = after.beyond(is_down) if after else (Q(), Q())
    own = _unnamed(rows.filter(beyond[0])).order_by(f"{sign}pk")
    return [own, rows.filter(beyond[1], made_at__isnull=False).order_by(f"{sign}made_at", f"{sign}pk")]


def _unnamed(rows: QuerySet[Job]) -> QuerySet[Job]:
    """Those whose ids say when. Where the index of the others has all rows, MariaDB would read all newer ones by it."""
    if connections[rows.db].features.supports_partial_indexes:
        return rows.filter(made_at=None)
    never = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return rows.alias(named=Coalesce("made_at", Value(never))).filter(named=never)


def first(found: list[QuerySet[Job]], number: int, is_down: bool = True) -> list[Job]:
    """The first ones of all kinds."""
    return sorted(chain.from_iterable(rows[:number] for rows in found), key=Place.of, reverse=is_down)[:number]
