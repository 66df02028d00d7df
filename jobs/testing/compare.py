"""What two runs of the same job left: rows of all models, and effects by their keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from django.db.models import AutoField, Model

from jobs.conf import OWN_TASKS, conf
from jobs.models import ENDED, Effect, Job, Marker, State
from jobs.operations.redaction import Shown
from jobs.testing.copies import Changes, Row
from jobs.testing.events import EFFECTS, SAFE, Event

#: Of this app's own rows: what a body asked for. The rest is how often, by whom and when; a result says what this very
#: run has done.
OWN_FIELDS = {
    Job: ("task", "args", "kwargs", "queue", "state", "unique_key"),
    Effect: ("name", "key", "state", "answer"),
    Marker: ("key", "kind"),
}

#: In the place of a value that is another one in each run, such as a time.
VARIES = "(varies)"


@dataclass(frozen=True)
class _Redacted:
    """Arguments of a job that are compared as they are, and shown as people may see them."""

    value: str
    shown: str = field(compare=False)

    @classmethod
    def of(cls, name: str, row: Row) -> Any:
        if conf().REDACT is None:
            return row[name]
        # SQLite gives JSON as text.
        given = {
            each: json.loads(row[each]) if isinstance(row[each], str) else row[each] for each in ("args", "kwargs")
        }
        return cls(repr(given[name]), repr(getattr(Shown(Job.of({"task": row["task"], **given})), name)))

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class Difference:
    """One row, or one field of it, that is not as without the fault."""

    model: str
    #: Of a row that was there before; empty of a new one.
    pk: str
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        row = f"{self.model} {self.pk}".rstrip()
        where = f"{row}.{self.field}" if self.field else row
        return f"{where}: expected {self.expected}, found {self.found}"


@dataclass
class Outcome:
    """What a run left, with the runs that followed it."""

    changes: list[Changes]
    events: list[Event]
    #: For each job that was asked for: its state, and how it failed.
    jobs: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether no job waits any more."""
        rows = (row for each in self.changes if each.model is Job for row in each.now)
        return all(state in ENDED for state, _ in self.jobs) and all(row["state"] in ENDED for row in rows)

    @property
    def does_something(self) -> bool:
        """Whether it wrote a row of the project's or another job, or sent something."""
        rows = (
            each.new if each.model is Job else each.now or each.gone for each in self.changes if _is_told(each.model)
        )
        return any(rows) or any(each.kind not in ("sql", "commit") for each in self.events)

    @property
    def failure(self) -> str:
        return next((error for state, error in self.jobs if state != State.SUCCEEDED), "")


def _is_told(model: type[Model]) -> bool:
    """Not what we keep for ourselves."""
    return model in (Job, Marker, Effect) or model._meta.app_label != Job._meta.app_label


class Varying:
    """What is another one in each run, although nothing went wrong: found out by two such runs.

    Parameters:
        first, second: the same from the same beginning.
    """

    def __init__(self, first: Outcome, second: Outcome) -> None:
        self._fields: set[tuple[str, str]] = set()
        one, other = (self._rows(each) for each in (first, second))
        for place in one.keys() & other.keys():
            left = list(other[place])
            for row in one[place][: len(left)]:
                # Its twin is the one that is most like it.
                unlike = [{name for name in row if row[name] != twin.get(name)} for twin in left]
                best = min(range(len(left)), key=lambda index: len(unlike[index]))
                self._fields |= {(place[0], name) for name in unlike[best]}
                del left[best]
        keys = ({event.key for event in each.events} for each in (first, second))
        #: Those that are the same in each run, so that the other side can tell.
        self.keys = set.intersection(*keys) - {None}

    def differences(self, expected: Outcome, found: Outcome, ignored: Sequence[type[Model]] = ()) -> list[Difference]:
        one, other = self._rows(expected, ignored), self._rows(found, ignored)
        differences: list[Difference] = []
        for place in sorted({*one, *other}):
            label, pk = place
            if pk:
                differences += self._of_row(label, pk, one, other, expected, found)
                continue
            missing = _without(one.get(place, []), other.get(place, []))
            extra = _without(other.get(place, []), one.get(place, []))
            for row, twin in zip_longest(missing, extra):
                if row is None or twin is None:
                    sides = ("no row", f"another row {_text(twin)}") if row is None else (f"a row {_text(row)}", "none")
                    differences.append(Difference(label, "", "", *sides))
                else:
                    differences += _fields_of(label, "", row, twin)
        return differences

    def _of_row(self, label: str, pk: str, one: Any, other: Any, expected: Outcome, found: Outcome) -> list[Difference]:
        """A row that was there before: it may have changed in one of the two only."""
        [row] = one.get((label, pk)) or [self._before(found, label, pk)]
        [twin] = other.get((label, pk)) or [self._before(expected, label, pk)]
        if row and twin:
            return _fields_of(label, pk, row, twin)
        sides = [_text(each) if each else "no row" for each in (row, twin)]
        return [] if row == twin else [Difference(label, pk, "", *sides)]

    def _before(self, outcome: Outcome, label: str, pk: str) -> Row:
        for changes in outcome.changes:
            if changes.model._meta.label == label:
                before = {key: old for key, (old, _) in changes.changed.items()} | changes.gone
                return next(
                    (self._plain(changes.model, row, {}) for key, row in before.items() if _name(key) == pk), {}
                )
        return {}

    def _rows(self, outcome: Outcome, ignored: Sequence[type[Model]] = ()) -> dict[tuple[str, str], list[Row]]:
        """What was changed, by model and key; what is new has no key, because the next number says nothing."""
        found: dict[tuple[str, str], list[Row]] = {}
        shown = [each for each in outcome.changes if each.model not in ignored and _is_compared(each.model)]
        new = {
            (changes.model, row[field.attname]): self._plain(changes.model, row, {})
            for changes in shown
            for row in changes.new
            if (field := changes.model._meta.pk) is not None and field.attname in row
        }
        for changes in shown:
            label = changes.model._meta.label
            for key in changes.gone:
                found[label, _name(key)] = [{}]
            for key, (_, row) in changes.changed.items():
                found[label, _name(key)] = [self._plain(changes.model, row, new)]
            rows = [self._plain(changes.model, row, new) for row in changes.new if row.get("task") not in OWN_TASKS]
            if rows:
                found[label, ""] = sorted(rows, key=_text)
        return found

    def _plain(self, model: type[Model], row: Row, new: dict[Any, Row]) -> Row:
        """The row by what can be compared: a new row that it refers to by what that one says, and not by its number."""
        plain: Row = {}
        for each in model._meta.local_concrete_fields:
            name: str = each.attname
            if name not in row or (model in OWN_FIELDS and name not in OWN_FIELDS[model]):
                continue
            if each.primary_key and isinstance(each, AutoField):
                continue
            value = _Redacted.of(name, row) if model is Job and name in ("args", "kwargs") else row[name]
            target = each.remote_field.model if each.remote_field else None
            if value is not None and (model._meta.label, name) in self._fields:
                value = VARIES
            elif target is not None and (target, value) in new:
                value = _text(new[target, value])
            plain[name] = value
        return plain


def _is_compared(model: type[Model]) -> bool:
    """Of this app's own only what a body asked for."""
    return model._meta.app_label != Job._meta.app_label or model in OWN_FIELDS


def _name(key: Iterable[Any]) -> str:
    return ", ".join(map(str, key))


def _text(row: Row) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def _without(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    left = Counter(map(_text, others))
    found = []
    for row in rows:
        if left[_text(row)]:
            left[_text(row)] -= 1
        else:
            found.append(row)
    return found


def _fields_of(label: str, pk: str, row: Row, twin: Row) -> list[Difference]:
    return [
        Difference(label, pk, name, repr(row[name]), repr(twin.get(name)))
        for name in row
        if row[name] != twin.get(name)
    ]


@dataclass(frozen=True)
class Effects:
    """Effects of the same place, to the same address, under the same key: too many without a key, or too few."""

    event: Event
    expected: int
    found: int

    @property
    def kind(self) -> str:
        return "twice" if self.found > self.expected else "lost"


def effects(expected: Outcome, found: Outcome, keys: set[str | None]) -> Iterator[Effects]:
    """Where they are not the same.

    Parameters:
        keys: those that can be relied on.
    """

    def counted(outcome: Outcome) -> tuple[Counter[Any], dict[Any, Event]]:
        events = [each for each in outcome.events if each.kind in EFFECTS and each.is_done]
        known = {
            (each.place, each.what, each.key if each.key in keys else None): each
            for each in events
            if not each.what.startswith(tuple(f"{method} " for method in SAFE))
        }
        places = ((each.place, each.what, each.key if each.key in keys else None) for each in events)
        return Counter(place for place in places if place in known), known

    one, other = counted(expected), counted(found)
    for place in dict.fromkeys([*one[0], *other[0]]):
        want, have = one[0][place], other[0][place]
        if have < want or (have > want and place[-1] is None):
            if place[-1] is not None and have:
                # Once under this key is enough.
                continue
            yield Effects((one[1] | other[1])[place], want, have)
