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
    #: The id of a worker, or its host's name.
    node: str | None = None
    #: Their unique key, or that of their marker.
    key: str | None = None
    #: The job out of whose body they were called.
    parent: uuid.UUID | None = None
    #: The class of the last error: ``SMTPException``.
    error: str | None = None
    #: Created since then.
    since: datetime.datetime | None = None
    #: Created before then.
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
            rows = _in_states(rows, self.states)
        if self.task is not None:
            name, star, _ = self.task.partition("*")
            rows = rows.filter(task__startswith=name) if star else rows.filter(task=name)
        if self.queue is not None:
            rows = rows.filter(queue=self.queue)
        if self.node is not None:
            rows = _on_node(rows, self.node)
        if self.key is not None:
            rows = rows.filter(pk__in=_of_key(self.key, rows.db))
        if self.parent is not None:
            rows = rows.filter(parent_id=self.parent)
        if self.error is not None:
            rows = rows.filter(error__type=self.error)
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


#: What can be asked for in words.
FIELDS = tuple(field.name for field in fields(Selection) if field.name != "states")


def newest(rows: QuerySet[Job]) -> QuerySet[Job]:
    """Of the jobs those that are searched."""
    last = list(rows.order_by("-pk").values_list("pk", flat=True)[SEARCHED - 1 : SEARCHED])
    return rows.filter(pk__gte=last[0]) if last else rows


def _in_states(rows: QuerySet[Job], states: Sequence[str]) -> QuerySet[Job]:
    rows = rows.filter(state=states[0]) if len(states) == 1 else rows.filter(state__in=states)
    if connections[rows.db].vendor == "sqlite" and set(states) <= set(UNSUCCESSFUL):
        # It takes the index only for its condition in the same words; others would count the condition twice.
        rows = rows.filter(state__in=UNSUCCESSFUL)
    return rows


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


def _of_key(key: str, using: str) -> QuerySet[Any]:
    """Each by an index of its own: together in one condition they would read the table."""
    rows = Job.objects.using(using)
    marked = rows.filter(marker_key=key).values("pk")
    return marked.union(rows.filter(unique_key=key).values("pk"), all=True)


def _said(text: str) -> Q:
    """As it was written, or as JSON escapes it."""
    found = Q()
    for way in {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}:
        for name in ("args", "kwargs"):
            found |= Q(IContains(Cast(name, TextField()), way))
    return found


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
            raise ValueError(gettext("%(text)r is before all time") % {"text": text}) from None
    try:
        day = parse_date(text.strip())
        value = datetime.datetime.combine(day, datetime.time()) if day else parse_datetime(text.strip())
    except ValueError:
        value = None
    if value is None:
        says = gettext("%(text)r is no moment: write 90min, 2h, 7d, 2026-11-21 or '2026-11-21 14:30'")
        raise ValueError(says % {"text": text})
    return value if timezone.is_aware(value) else timezone.make_aware(value)


def _id(text: str) -> uuid.UUID:
    key = parse_uuid(text)
    if key is None:
        raise ValueError(gettext("%(text)r is no ID of a job (a UUID)") % {"text": text})
    return key


#: How what is not just a text is read.
READERS: dict[str, Callable[[str], Any]] = {"since": moment, "until": moment, "parent": _id}
