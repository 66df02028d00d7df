"""Which jobs: by id, or by what they have in common."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Self

from django.db import connections
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.db.models.lookups import IContains
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext

from jobs.arguments import parse_uuid
from jobs.conf import conf
from jobs.fields import created_before, created_since, first_id
from jobs.models import UNSUCCESSFUL, Job, Node

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d|w)")

#: So many digits of an id are shown in lists: the first ones of a worker's; of a job's the last ones, because the first
#: are the time.
SHOWN = 8

#: How many jobs, the newest of those that fit otherwise, are searched for what no index has.
SEARCHED = 10_000


class Unreadable(ValueError):
    """What somebody wrote for a field of :class:`Selection` cannot be."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        #: What it should be; in the reader's language.
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All jobs that fit everything that is given."""

    states: Sequence[str] = ()
    #: A task's name, or the beginning of one and an asterisk.
    task: str | None = None
    queue: str | None = None
    #: The id of a worker or its first digits, or its host's name.
    node: str | None = None
    #: Their unique key, or that of their marker.
    key: str | None = None
    #: The job out of whose body they were called.
    parent: uuid.UUID | None = None
    #: The class of the last error: ``SMTPException``.
    error: str | None = None
    #: When they were created: since then, and before then.
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    #: Text within the arguments, as JSON has them; of the newest that fit otherwise: :data:`SEARCHED`.
    contains: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str | None], states: Sequence[str] = ()) -> Self:
        """Out of what people wrote; empty is not given.

        Raises:
            Unreadable: one of them cannot be; says which, and what it should be.
        """
        values: dict[str, Any] = {}
        for name in FIELDS:
            text = (given.get(name) or "").strip()
            if "\0" in text:
                raise Unreadable(name, gettext("no text with a NUL fits anything"))
            try:
                if text:
                    values[name] = READERS.get(name, str)(text)
            except ValueError as exc:
                raise Unreadable(name, str(exc)) from exc
        return cls(states=states, **values)

    def rows(self, using: str) -> QuerySet[Job]:
        return self.narrow(Job.objects.using(using))

    def narrow(self, rows: QuerySet[Job]) -> QuerySet[Job]:
        if self.states:
            rows = rows.filter(state=self.states[0]) if len(self.states) == 1 else rows.filter(state__in=self.states)
            if connections[rows.db].vendor == "sqlite" and set(self.states) <= set(UNSUCCESSFUL):
                # It takes the index only for its condition in the same words; others would count the condition twice.
                rows = rows.filter(state__in=UNSUCCESSFUL)
        if self.task is not None:
            name, star, _ = self.task.partition("*")
            rows = rows.filter(task__startswith=name) if star else rows.filter(task=name)
        if self.node is not None:
            rows = _on_node(rows, self.node)
        if self.key is not None:
            # Each by an index of its own: together in one condition they would read the table.
            every = Job.objects.using(rows.db)
            marked, unique = every.filter(marker_key=self.key), every.filter(unique_key=self.key)
            rows = rows.filter(pk__in=marked.values("pk").union(unique.values("pk"), all=True))
        same = {"queue": self.queue, "parent_id": self.parent, "error__type": self.error}
        rows = rows.filter(**{name: value for name, value in same.items() if value is not None})
        if self.since is not None:
            rows = rows.filter(created_since(self.since))
        if self.until is not None:
            rows = _before(rows, self.until)
        if self.contains is not None:
            rows = newest(rows).filter(_said(self.contains))
        return rows

    def count(self) -> int:
        return sum(self.rows(alias).count() for alias in conf().DATABASES)

    def __iter__(self) -> Iterator[tuple[uuid.UUID, str]]:
        """The ids, each with its database's alias; each job once, whatever becomes of it meanwhile."""
        # One state at a time: together they could not use their partial indexes.
        for alias, state in product(conf().DATABASES, self.states or [""]):
            rows = self.rows(alias).order_by("pk").values_list("pk", flat=True)
            rows = rows.filter(state=state) if state else rows
            page = list(rows[: conf().BATCH])
            while page:
                yield from ((key, alias) for key in page)
                page = list(rows.filter(pk__gt=page[-1])[: conf().BATCH])


#: What can be asked for in words.
FIELDS = tuple(field.name for field in fields(Selection) if field.name != "states")


def newest(rows: QuerySet[Job]) -> QuerySet[Job]:
    """Of the jobs those that are searched."""
    last = list(rows.order_by("-pk").values_list("pk", flat=True)[SEARCHED - 1 : SEARCHED])
    return rows.filter(pk__gte=last[0]) if last else rows


def _on_node(rows: QuerySet[Job], text: str) -> QuerySet[Job]:
    key = parse_uuid(text)
    named = Q(hostname=text) if key is None else Q(pk=key)
    if len(text) == SHOWN and text.isalnum():
        # As lists show it; a host may be called so as well.
        named |= Q(pk__startswith=text)
    nodes = Node.objects.using(rows.db).filter(named)
    deaths: dict[uuid.UUID, Any] = dict(nodes.values_list("pk", "dead_at"))
    rows = rows.filter(node__in=deaths or [key])
    if deaths and None not in deaths.values():
        # What was made after their death they did not run: nobody has to look for it there.
        rows = _before(rows, max(deaths.values()))
    return rows


def _before(rows: QuerySet[Job], moment: datetime.datetime) -> QuerySet[Job]:
    """Where every id says its time, the key's index alone leads to the newest of them."""
    if Job.objects.using(rows.db).filter(made_at__isnull=False).exists():
        return rows.filter(created_before(moment))
    return rows.filter(pk__lt=first_id(moment))


def _said(text: str) -> Q:
    """As it was written, or as JSON escapes it."""
    ways = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found = [Q(IContains(Cast(name, TextField()), way)) for way in ways for name in ("args", "kwargs")]
    return Q(*found, _connector=Q.OR)


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
    text = text.strip()
    if found := _AGE.fullmatch(text):
        number, unit = found.groups()
        try:
            return timezone.now() - datetime.timedelta(seconds=float(number) * _UNITS[unit])
        except OverflowError:
            raise ValueError(gettext("%(text)r is before all time") % {"text": text}) from None
    try:
        day = parse_date(text)
        value = datetime.datetime.combine(day, datetime.time()) if day else parse_datetime(text)
    except ValueError:
        value = None
    if value is None:
        says = gettext("%(text)r is no moment: write 90min, 2h, 7d, 2026-11-21 or '2026-11-21 14:30'")
        raise ValueError(says % {"text": text})
    return value if timezone.is_aware(value) else timezone.make_aware(value)


def _id(text: str) -> uuid.UUID:
    if (key := parse_uuid(text)) is None:
        raise ValueError(gettext("%(text)r is no ID of a job (a UUID)") % {"text": text})
    return key


#: How what is not just a text is read.
READERS: dict[str, Callable[[str], Any]] = {"since": moment, "until": moment, "parent": _id}
