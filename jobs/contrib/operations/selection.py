"""Which jobs a person means: by id, or by what the jobs have in common."""

import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from typing import Any, NamedTuple, Self, TypeVar

from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.db.models.lookups import IContains
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import extensions, store
from jobs.conf import celery_app, conf, import_tasks
from jobs.models import CLAIMABLE, HELD, UNSUCCESSFUL, Job, State
from jobs.models.values import as_uuid, parse_uuid
from jobs.store import databases
from jobs.store.sqlite import SQLite

#: How many digits of an id lists show: the first of a worker's, and the last of a job's (the first are the time).
DIGITS = 8
NAMED = 5  #: How many jobs are named if a text means several.
SEARCHED = 10_000  #: How many of the newest jobs are searched for what no index has.

M = TypeVar("M", bound=Model)


class Unreadable(ValueError):
    """A text that a field of :class:`Selection` cannot read; ``why``, in the reader's language."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


def newest(rows: QuerySet[M]) -> QuerySet[M]:
    """The newest rows, the only ones that are searched."""
    last = list(rows.order_by("-pk").values_list("pk", flat=True)[SEARCHED - 1 : SEARCHED])
    return rows.filter(pk__gte=last[0]) if last else rows


def said(text: str) -> Q:
    """The condition that the arguments contain a text, as it was written or as JSON escapes it."""
    ways = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found = [Q(IContains(Cast(name, TextField()), way)) for way in ways for name in ("args", "kwargs")]
    return Q(*found, _connector=Q.OR)


# Reading what people write


def identify(text: str) -> uuid.UUID:
    """The id of a job, from the whole id or its last digits. ``ValueError`` says what is wrong with the text."""
    if (key := parse_uuid(text)) is not None:
        return key
    # Another program's message may have any id.
    given = Job.objects.filter(pk__in=[as_uuid(text)], made_at__isnull=False)
    if text and (job := databases.first(given.only("pk"))) is not None:
        return job.pk
    if not _END.fullmatch(text):
        raise ValueError(gettext("is no valid UUID, nor the last 8 digits of one"))
    jobs = Job.objects.filter(pk__endswith=text.lower()).values_list("pk", "task")
    found = {key: task for rows in databases.each(jobs) for key, task in rows[:NAMED]}
    if not found:
        raise ValueError(gettext("is the end of no job's id"))
    if len(found) > 1:
        named = ", ".join(f"{key} ({task})" for key, task in found.items())
        raise ValueError(gettext("is the end of several ids: %(ids)s") % {"ids": named})
    return next(iter(found))


def check_queue(queue: str) -> None:
    """Raise ``ValueError``, in the reader's language, if no queue can have this name."""
    if not 0 < len(queue) <= 255 or "\0" in queue:
        says = gettext("Name a queue, in 1 to %(number)s characters, none of them NUL.")
        raise ValueError(says % {"number": 255})


def one_task(text: str) -> str:
    """The name of a task, as :func:`full_name` finds it. ``Unreadable`` if the text is a pattern."""
    if "*" in text:
        raise Unreadable("task", gettext("%(name)r are several tasks: name one of them") % {"name": text})
    return full_name(text)


def full_name(text: str) -> str:
    """The name of a task, from the whole name or its end. ``Unreadable``: no task, or several, have this name."""
    app = celery_app()
    if "*" in text or app is None or text in app.tasks:
        return text
    # Jobs may outlive the code of their tasks.
    if any(rows.exists() for rows in databases.each(Job.objects.filter(task=text))):
        return text
    import_tasks(app)
    known = {name: name.rpartition(".")[2] for name in app.tasks}
    found = sorted(name for name in known if f".{name}".endswith(f".{text}"))
    if len(found) == 1:
        return found[0]
    # A short name is compared with short names.
    close = get_close_matches(text, known, 1)
    close += [name for name, short in known.items() if short in get_close_matches(text, set(known.values()), 1)]
    if found:
        says = gettext("several tasks are called %(text)r: %(names)s")
    elif close:
        says = gettext("there is no task, and no job, of the name %(text)r; did you mean %(name)s?")
    else:
        says = gettext("there is no task, and no job, of the name %(text)r")
    raise Unreadable("task", says % {"text": text, "names": ", ".join(found), "name": "".join(close[:1])})


_END = re.compile("[0-9a-fA-F]{8,12}")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAY = datetime.timedelta(days=1)
_AGE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})")


def moment(text: str) -> datetime.datetime:
    """``90min``, ``2h``, ``7d`` ago; ``2026-11-21``, ``2026-11-21 14:30``. ``ValueError``: it is something else."""
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
        if value is not None:
            value = value if timezone.is_aware(value) else timezone.make_aware(value)
            # The database and its readers may have other zones, less than a day away.
            _ = value - _DAY, value + _DAY
    except (ValueError, OverflowError):
        value = None
    if value is None:
        says = gettext("%(text)r is no moment: write 90min, 2h, 7d, 2026-11-21 or '2026-11-21 14:30'")
        raise ValueError(says % {"text": text})
    return value


def read_text(text: str) -> str:
    if "\0" in text:
        raise ValueError(gettext("no text with a NUL fits anything"))
    return text


def read_id(text: str) -> uuid.UUID:
    if (key := parse_uuid(text)) is None:
        raise ValueError(gettext("%(text)r is no ID of a job (a UUID)") % {"text": text})
    return key


class Field(NamedTuple):
    """A field to select jobs by: its name and an example in a form, and its help on the command line."""

    label: Any
    example: str
    help: str
    #: How to find the jobs of a queryset that fit a value: a look-up of Django's, or a function.
    fits: str | Callable[[QuerySet[Job], Any], QuerySet[Job]]
    #: The value that a text means; ``ValueError``: it means no value.
    read: Callable[[str], Any] = read_text
    #: It reveals arguments: a form does not ask for it if those are redacted.
    is_secret: bool = False
    #: Whether an index finds its jobs in a long history.
    has_index: bool = True


def _of_task(rows: QuerySet[Job], name: str) -> QuerySet[Job]:
    first, star, _rest = name.partition("*")
    return rows.filter(task__startswith=first) if star else rows.filter(task=name)


#: The fields that people can select jobs by.
FIELDS = {
    "task": Field(
        _("Task"),
        "shop.tasks.*",
        "all jobs of a task, by its name or its end; TASK*: all that begin so",
        _of_task,
        has_index=False,
    ),
    "queue": Field(_("Queue"), "celery", "all jobs of a queue", "queue", has_index=False),
    **{name: field for selects in extensions.through("selects") for name, field in selects().items()},
}


@dataclass(frozen=True, slots=True)
class Selection:
    """All jobs in one of the states (empty: any state) that fit all values; :data:`FIELDS` says what each value is."""

    states: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str | None], states: Sequence[str] = ()) -> Self:
        """The selection that a person wrote; empty texts are left out. ``Unreadable``: a text means nothing."""
        values: dict[str, Any] = {}
        for name, its in FIELDS.items():
            if text := (given.get(name) or "").strip():
                try:
                    values[name] = its.read(text)
                except ValueError as exc:
                    raise Unreadable(name, str(exc)) from exc
        return cls(states, values)

    def rows(self, using: str) -> QuerySet[Job]:
        return self.narrow(Job.objects.using(using))

    def narrow(self, rows: QuerySet[Job]) -> QuerySet[Job]:
        if len(self.states) == 1:
            # Two partial indexes hold the ready jobs. PostgreSQL uses them only if the query repeats their conditions.
            is_ready = self.states[0] == State.READY
            rows = rows.filter(CLAIMABLE | HELD if is_ready else Q(state=self.states[0]))
        elif self.states:
            rows = rows.filter(state__in=self.states)
        if self.states and set(self.states) <= set(UNSUCCESSFUL) and isinstance(store.of(rows.db), SQLite):
            # SQLite uses a partial index only if the query repeats the index's condition.
            rows = rows.filter(state__in=UNSUCCESSFUL)
        for name, value in self.values.items():
            fits = FIELDS[name].fits
            rows = rows.filter(**{fits: value}) if isinstance(fits, str) else fits(rows, value)
        return rows

    def count(self) -> int:
        return sum(self.rows(alias).count() for alias in conf().DATABASES)

    def jobs(self, *columns: str) -> Iterator[Job]:
        """The rows with their ids and these columns, in pages by id; each job comes once in each state."""
        # One state at a time, by its partial index.
        for alias, state in product(conf().DATABASES, self.states or [""]):
            one = replace(self, states=[state]) if state else self
            rows = one.rows(alias).order_by("pk").only("pk", *columns)
            page = list(rows[: conf().BATCH])
            while page:
                yield from page
                page = list(rows.filter(pk__gt=page[-1].pk)[: conf().BATCH])
