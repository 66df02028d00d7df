"""Which jobs: by id, or by what they have in common."""

import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from typing import Any, NamedTuple, Self, TypeVar

from django.db import connections
from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.db.models.lookups import IContains
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import extensions
from jobs.conf import celery_app, conf, import_tasks
from jobs.models import CLAIMABLE, HELD, UNSUCCESSFUL, Job, Node, State
from jobs.models.fields import created_before, created_since, first_id
from jobs.models.values import parse_uuid
from jobs.store import databases

#: How many digits of an id lists show: the first of a worker's, the last of a job's, whose first ones are the time.
DIGITS = 8
NAMED = 5  #: Of several that are meant so many are named.
SEARCHED = 10_000  #: Jobs, the newest of those that fit otherwise, that are searched for what no index has.

M = TypeVar("M", bound=Model)


class Unreadable(ValueError):
    """A text for a field of :class:`Selection` that cannot be; ``why``, in the reader's language."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All jobs that fit everything that is given; :data:`FIELDS` says what each is."""

    states: Sequence[str] = ()
    task: str | None = None
    queue: str | None = None
    node: str | None = None
    key: str | None = None
    parent: uuid.UUID | None = None
    error: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    ended: datetime.datetime | None = None
    contains: str | None = None
    #: Values of columns that extensions have.
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str | None], states: Sequence[str] = ()) -> Self:
        """A selection out of what people wrote; empty texts count for nothing. ``Unreadable``: a text cannot be."""
        values: dict[str, Any] = {}
        more: dict[str, Any] = {}
        for name, its in FIELDS.items():
            if text := (given.get(name) or "").strip():
                try:
                    (more if its.column else values)[its.column or name] = its.read(text)
                except ValueError as exc:
                    raise Unreadable(name, str(exc)) from exc
        return cls(states=states, more=more, **values)

    def rows(self, using: str) -> QuerySet[Job]:
        return self.narrow(Job.objects.using(using))

    def narrow(self, rows: QuerySet[Job]) -> QuerySet[Job]:
        if len(self.states) == 1:
            # Two partial indexes hold the ready jobs. PostgreSQL uses both only if the condition has their words.
            is_ready = self.states[0] == State.READY
            rows = rows.filter(CLAIMABLE | HELD if is_ready else Q(state=self.states[0]))
        elif self.states:
            rows = rows.filter(state__in=self.states)
        if self.states and connections[rows.db].vendor == "sqlite" and set(self.states) <= set(UNSUCCESSFUL):
            # SQLite uses the index only if the condition has its words; for PostgreSQL it would count twice.
            rows = rows.filter(state__in=UNSUCCESSFUL)
        if self.node is not None:
            rows = _on_node(rows, self.node)
        if self.key is not None:
            # Each by its own index: in one condition they would read the table.
            every = Job.objects.using(rows.db)
            marked, unique = every.filter(marker_key=self.key), every.filter(unique_key=self.key)
            rows = rows.filter(pk__in=marked.values("pk").union(unique.values("pk"), all=True))
        name, star, _rest = (self.task or "").partition("*")
        same: dict[str, Any] = {"task__startswith" if star else "task": self.task and name}
        same |= {"queue": self.queue, "parent_id": self.parent, "error__type": self.error, **self.more}
        rows = rows.filter(**{name: value for name, value in same.items() if value is not None})
        if self.since is not None:
            rows = rows.filter(created_since(self.since))
        if self.until is not None:
            rows = _before(rows, self.until)
        if self.ended is not None:
            rows = rows.filter(finished_at__gte=self.ended)
        if self.contains is not None:
            rows = newest(rows).filter(said(self.contains))
        return rows

    def count(self) -> int:
        return sum(self.rows(alias).count() for alias in conf().DATABASES)

    def __iter__(self) -> Iterator[tuple[uuid.UUID, str]]:
        """The ids, each with its database's alias; each job once, whatever becomes of it meanwhile."""
        # One state at a time, by its partial index.
        for alias, state in product(conf().DATABASES, self.states or [""]):
            one = replace(self, states=[state]) if state else self
            rows = one.rows(alias).order_by("pk").values_list("pk", flat=True)
            page = list(rows[: conf().BATCH])
            while page:
                yield from ((key, alias) for key in page)
                page = list(rows.filter(pk__gt=page[-1])[: conf().BATCH])


def newest(rows: QuerySet[M]) -> QuerySet[M]:
    """The newest rows, which are searched."""
    last = list(rows.order_by("-pk").values_list("pk", flat=True)[SEARCHED - 1 : SEARCHED])
    return rows.filter(pk__gte=last[0]) if last else rows


def _on_node(rows: QuerySet[Job], text: str) -> QuerySet[Job]:
    key = parse_uuid(text)
    named = Q(hostname=text) | Q(hostname__endswith=f"@{text}") if key is None else Q(pk=key)
    if len(text) == DIGITS and text.isalnum():
        # The digits that lists show; or the name of a host.
        named |= Q(pk__startswith=text)
    nodes = Node.objects.using(rows.db).filter(named)
    deaths: dict[uuid.UUID, Any] = dict(nodes.values_list("pk", "dead_at"))
    rows = rows.filter(node__in=deaths or [key])
    if deaths and None not in deaths.values():
        # They ran nothing that was made after their death.
        rows = _before(rows, max(deaths.values()))
    return rows


def _before(rows: QuerySet[Job], moment: datetime.datetime) -> QuerySet[Job]:
    """Those made before; if every id tells its time, the index of the key alone finds the newest of them."""
    if Job.objects.using(rows.db).filter(made_at__isnull=False).exists():
        return rows.filter(created_before(moment))
    return rows.filter(pk__lt=first_id(moment))


def said(text: str) -> Q:
    """The condition that a text is in the arguments, as it was written or as JSON escapes it."""
    ways = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found = [Q(IContains(Cast(name, TextField()), way)) for way in ways for name in ("args", "kwargs")]
    return Q(*found, _connector=Q.OR)


# What people write


def identify(text: str) -> uuid.UUID:
    """The id of a job, from a whole one or from its last digits. ``ValueError`` says what is wrong with the text."""
    if (key := parse_uuid(text)) is not None:
        return key
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


def tasks_like(text: str) -> list[str]:
    """The names of tasks, known here or counted once, that begin with the text, or whose function is called so."""
    known = {name for had in extensions.through("known") for name in had("task")}
    known |= set(getattr(celery_app(), "tasks", ()))
    return sorted(name for name in known if name.startswith(text) or name.rpartition(".")[2] == text)


def one_task(text: str) -> str:
    """The same, of one task. ``Unreadable`` if it is a pattern."""
    if "*" in text:
        raise Unreadable("task", gettext("%(name)r are several tasks: name one of them") % {"name": text})
    return full_name(text)


def full_name(text: str) -> str:
    """The name of a task, from itself or from its end. ``Unreadable``: no task, or several, are called so."""
    app = celery_app()
    if "*" in text or app is None or text in app.tasks:
        return text
    # Jobs outlive the code of their tasks.
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
_AGE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})")


def moment(text: str) -> datetime.datetime:
    """``90min``, ``2h``, ``7d`` ago; ``2026-11-21``, ``2026-11-21 14:30``. ``ValueError``: it is none of these."""
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


def read_id(text: str) -> uuid.UUID:
    if (key := parse_uuid(text)) is None:
        raise ValueError(gettext("%(text)r is no ID of a job (a UUID)") % {"text": text})
    return key


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError(gettext("no text with a NUL fits anything"))
    return text


class Field(NamedTuple):
    """What one can be asked for in words: its name and an example in a form, its help on the command line."""

    label: Any
    example: str
    help: str
    read: Callable[[str], Any] = _text
    #: Of an extension: the job's column that has this value.
    column: str = ""


FIELDS = {
    "task": Field(_("Task"), "shop.tasks.*", "all jobs of a task, by its name or its end; TASK*: all that begin so"),
    "queue": Field(_("Queue"), "celery", "all jobs of a queue"),
    "node": Field(
        _("Worker (its ID or host)"), "web1", "all jobs that a worker ran last: its id, 8 digits of it, its host"
    ),
    "key": Field(_("Key (unique or idempotency)"), "welcome:42", "all jobs of a unique key, or of a marker's"),
    "parent": Field(
        _("Called by the job"), "6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "all jobs that its body called", read_id
    ),
    **{name: field for selects in extensions.through("selects") for name, field in selects().items()},
    "error": Field(_("Error"), "SMTPConnectError", "all jobs whose last error is of this class: SMTPException"),
    "since": Field(
        _("Created since"), "2h", "those created since then: 2h, 7d, 2026-11-21, '2026-11-21 14:30'", moment
    ),
    "until": Field(_("Created before"), "2026-11-21 14:30", "those created before then", moment),
    "ended": Field(_("Ended since"), "1h", "those that ended since then", moment),
    "contains": Field(_("Arguments contain"), "ada@example.com", f"with this text in them; of the newest {SEARCHED:,}"),
}
