"""Compare what two runs of the same job left: the rows of all models, and effects by their keys."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import AutoField, Model

from jobs.conf import conf, own_tasks
from jobs.contrib.copies.store import Change, Row
from jobs.contrib.crashtest.recorder import EFFECTS, SAFE, Operation
from jobs.contrib.redaction.display import shown
from jobs.models import ENDED, Job, Marker, State, tables

#: The fields of this app's own rows that are compared: what a body asked for. The other fields say how often, where and
#: when it ran, or what this one run returned. A table of an extension says it by ``asked_for``.
OWN_FIELDS = {
    Job: ("task", "args", "kwargs", "queue", "state", "unique_key"),
    Marker: ("key", "kind"),
}

#: Stands for a value that differs between any two runs, such as a time.
VARIES = "(varies)"


@dataclass(frozen=True)
class Difference:
    """A row, or one of its fields, that differs from a run without the fault."""

    model: str
    #: Empty if the row is new.
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
    """What a run left, and the runs that followed it."""

    changes: list[Change]
    operations: list[Operation]
    #: For each job that was asked for: its state, and how it failed.
    jobs: list[tuple[str, str]] = field(default_factory=list)

    def without_jobs(self) -> Outcome:
        return replace(self, changes=[each for each in self.changes if each.model is not Job])

    @property
    def is_over(self) -> bool:
        """Whether no job waits any more."""
        states = [each.after["state"] for each in self.changes if each.model is Job and each.after]
        return all(state in ENDED for state in [*states, *(state for state, _ in self.jobs)])

    @property
    def does_something(self) -> bool:
        """Whether it wrote a row of the project, made another job, or sent something."""
        rows = (each for each in self.changes if _asked_for(each.model) != ())
        is_told = any(not each.before or each.model is not Job for each in rows)
        return is_told or any(each.kind not in ("sql", "commit") for each in self.operations)

    @property
    def failure(self) -> str:
        return next((error for state, error in self.jobs if state != State.SUCCEEDED), "")


def _asked_for(model: type[Model]) -> tuple[str, ...] | None:
    """The fields of this app's own models that are compared; None: it is the project's, and all are."""
    if model not in tables():
        return None
    return OWN_FIELDS.get(model) or getattr(model, "asked_for", ())


class Varying:
    """What differs between any two runs, although nothing went wrong.

    Parameters:
        first, second: two such runs, from the same beginning.
    """

    def __init__(self, first: Outcome, second: Outcome) -> None:
        self._fields: set[tuple[str, str]] = set()
        self.widen(first, second)
        keys = ({operation.key for operation in each.operations} for each in (first, second))
        #: The keys that are the same in each run, so that the receiver can recognise a repetition.
        self.keys = set.intersection(*keys) - {None}

    def widen(self, first: Outcome, second: Outcome) -> None:
        """Learn from two more such runs: some values, such as a date or a random choice, are mostly the same."""
        self._fields |= {
            (label, name)
            for label, _, row, twin in self._pairs(first, second)
            if row and twin
            for name in _unlike(row, twin)
        }

    def differences(self, expected: Outcome, found: Outcome) -> list[Difference]:
        differences = []
        for label, pk, row, twin in self._pairs(expected, found):
            if row and twin:
                names = _unlike(row, twin)
                differences += [Difference(label, pk, name, repr(row[name]), repr(twin.get(name))) for name in names]
            elif row or twin:
                sides = (f"a row {_text(each)}" if each else "no row" for each in (row, twin))
                differences.append(Difference(label, pk, "", *sides))
        return differences

    def _pairs(self, one: Outcome, other: Outcome) -> Iterator[tuple[str, str, Row, Row]]:
        """Pair the rows of both: the model, the key (empty if the row is new), and a row of each."""
        (old, new), (old_twins, new_twins) = map(self._rows, (one, other))
        for place in sorted({*old, *old_twins}):
            # If only one of the two has changed the row, the other has it as it was before.
            before = (old.get(place) or old_twins[place])[0]
            row, twin = (each[place][1] if place in each else before for each in (old, old_twins))
            yield *place, row, twin
        for label in sorted({*new, *new_twins}):
            rows, left = _without(new[label], new_twins[label]), _without(new_twins[label], new[label])
            for row in rows:
                # The most similar one is its twin.
                twin = min(left, key=lambda each, row=row: len(_unlike(row, each)), default={})  # type: ignore[misc]
                if twin:
                    left.remove(twin)
                yield label, "", row, twin
            yield from ((label, "", {}, row) for row in left)

    def _rows(self, outcome: Outcome) -> tuple[dict[tuple[str, str], tuple[Row, Row]], dict[str, list[Row]]]:
        """Changed rows by model and key, before and after; and new rows by model.

        The key of a new row is not compared: it is only the next number.
        """
        changes = [each for each in outcome.changes if _asked_for(each.model) != ()]
        names = {
            (each.model, each.after[pk.attname]): _text(self._plain(each.model, each.after, {}))
            for each in changes
            if not each.before and (pk := each.model._meta.pk) is not None and pk.attname in each.after
        }
        old: dict[tuple[str, str], tuple[Row, Row]] = {}
        new: defaultdict[str, list[Row]] = defaultdict(list)
        for model, key, before, after in changes:
            row = self._plain(model, after, names)
            if before:
                old[model._meta.label, key] = self._plain(model, before, {}), row
            elif after.get("task") not in own_tasks():
                new[model._meta.label].append(row)
        return old, new

    def _plain(self, model: type[Model], row: Row, names: dict[Any, str]) -> Row:
        """The fields that can be compared. A reference to a new row is shown as the content of that row."""
        plain: Row = {}
        fields = _asked_for(model)
        for each in model._meta.local_concrete_fields:
            name: str = each.attname
            is_number = each.primary_key and isinstance(each, AutoField)
            if is_number or name not in row or (fields and name not in fields):
                continue
            value = _arguments(name, row) if model is Job and name in ("args", "kwargs") else row[name]
            target = each.remote_field.model if each.remote_field else None
            if value is not None and (model._meta.label, name) in self._fields:
                value = VARIES
            elif target is not None:
                value = names.get((target, value), value)
            plain[name] = value
        return plain


class _Redacted(str):
    """A value that is compared as it is, and shown redacted."""

    shown = ""

    def __repr__(self) -> str:
        return self.shown


def _arguments(name: str, row: Row) -> Any:
    if conf().REDACT is None:
        return row[name]
    # SQLite gives JSON as text.
    given = {each: json.loads(row[each]) if isinstance(row[each], str) else row[each] for each in ("args", "kwargs")}
    value = _Redacted(given[name])
    value.shown = repr(getattr(shown(Job.of({"task": row["task"], **given})), name))
    return value


def _text(row: Row) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def _unlike(row: Row, twin: Row) -> list[str]:
    return [name for name in row if row[name] != twin.get(name)]


def _without(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    known = {_text(row): row for row in rows}
    left = Counter(map(_text, rows)) - Counter(map(_text, others))
    return [known[text] for text in sorted(left.elements())]


def effects(expected: Outcome, found: Outcome, keys: set[str | None]) -> Iterator[tuple[Operation, int, int]]:
    """Effects that happened too often without a key, or not often enough; how many there should be, and how many are.

    Effects are the same if they have the same line, address and key. Keys that differ between runs do not count.
    """
    one, other = (_by_place(each.operations, keys) for each in (expected, found))
    for place in {**one, **other}:
        want, have, is_keyed = len(one[place]), len(other[place]), place[-1] is not None
        # With a key, once is enough.
        if (have < want and not (is_keyed and have)) or (have > want and not is_keyed):
            yield (other[place] or one[place])[-1], want, have


def _by_place(operations: Sequence[Operation], keys: set[str | None]) -> defaultdict[Any, list[Operation]]:
    found: defaultdict[Any, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.kind in EFFECTS and each.is_done and not each.what.startswith(tuple(f"{method} " for method in SAFE)):
            found[each.place, each.what, each.key if each.key in keys else None].append(each)
    return found
