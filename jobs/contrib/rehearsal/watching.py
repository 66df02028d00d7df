"""Records what a body does to its databases: statement by statement, and row by row where Django sends signals."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.models import Model
from django.db.models.signals import post_delete, post_save, pre_save

from jobs.contrib.isolation.isolation import WRITE, own_tables
from jobs.errors import NotIsolated

#: At most this many rows are shown one by one; all rows are counted.
MOST = 100

#: Matches statements that would end the transaction, and with it the rehearsal.
ENDS = re.compile(
    r"\s*(?:COMMIT|END|BEGIN|START|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+TO\b|\s+WORK\s+TO\b))\b", re.I
)
#: Matches statements that commit implicitly on databases where definitions do not roll back.
DEFINES = re.compile(r"\s*(?:CREATE|ALTER|DROP|TRUNCATE|RENAME|LOCK|UNLOCK|ANALYZE|OPTIMIZE)\b", re.I)

VERBS = {"INSERT": "inserted", "REPLACE": "inserted", "UPDATE": "changed", "DELETE": "deleted"}


class Watch:
    def __init__(self) -> None:
        #: How many rows, by table and action.
        self.counts: Counter[tuple[str, str]] = Counter()
        #: Rows of the project's models, one by one: model, key, action, and the fields before and after.
        self.rows: list[dict[str, Any]] = []
        #: Django's signals come from all threads; only this one counts.
        self._thread = threading.get_ident()
        self._uncounted: tuple[Any, int, tuple[str, str]] | None = None
        self._before: dict[int, dict[str, Any] | None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as watched:
            for connection in connections.all():
                watched.enter_context(connection.execute_wrapper(self._statement))
            for signal, receiver in ((pre_save, self._saving), (post_save, self._saved), (post_delete, self._deleted)):
                signal.connect(receiver, weak=False)
                watched.callback(signal.disconnect, receiver)
            yield
            self._count_last()

    def table_counts(self) -> list[dict[str, Any]]:
        """The counts for each table that is not ours, sorted by name."""
        found: dict[str, dict[str, Any]] = {}
        for (table, what), number in sorted(self.counts.items()):
            label = _models().get(table)
            empty = {"table": table, "model": label, "inserted": 0, "changed": 0, "deleted": 0}
            found.setdefault(table, empty)[what] += number
        return list(found.values())

    def _statement(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        self._count_last()
        text, connection = str(sql), context["connection"]
        if not connection.in_atomic_block:
            raise NotIsolated(f"the database {connection.alias!r} could not be opened before: nothing of it rolls back")
        if ENDS.match(text) or (DEFINES.match(text) and not connection.features.can_rollback_ddl):
            raise NotIsolated(f"the statement {text[:60]!r} would end the transaction, which is to roll back")
        found = WRITE.match(text)
        if found is None or found[2] in own_tables():
            return execute(sql, params, many, context)
        what, raw = (found[2], VERBS[found[1].upper()]), connection.connection
        if hasattr(raw, "total_changes"):
            # SQLite knows the number of rows of INSERT ... RETURNING only after they have been read.
            self._uncounted = raw, raw.total_changes, what
            return execute(sql, params, many, context)
        answer = execute(sql, params, many, context)
        self.counts[what] += max(0, context["cursor"].rowcount)
        return answer

    def _count_last(self) -> None:
        if self._uncounted is not None:
            raw, before, what = self._uncounted
            self.counts[what] += raw.total_changes - before
            self._uncounted = None

    def _saving(self, sender: type[Model], instance: Model, using: str, raw: bool = False, **_: Any) -> None:
        if self._is_shown(sender) and instance.pk is not None:
            rows = sender._base_manager.using(using).filter(pk=instance.pk)
            self._before[id(instance)] = rows.values(*(field.attname for field in sender._meta.concrete_fields)).first()

    def _saved(self, sender: type[Model], instance: Model, created: bool, **_: Any) -> None:
        before = self._before.pop(id(instance), None) or {}
        after = {field.attname: getattr(instance, field.attname) for field in sender._meta.concrete_fields}
        fields = {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
        self._note(sender, instance, "inserted" if created else "changed", fields)

    def _deleted(self, sender: type[Model], instance: Model, **_: Any) -> None:
        self._note(sender, instance, "deleted", {})

    def _note(self, sender: type[Model], instance: Model, what: str, fields: dict[str, Any]) -> None:
        if self._is_shown(sender):
            shown = {name: [_plain(value) for value in pair] for name, pair in fields.items()}
            self.rows.append({"model": sender._meta.label, "pk": instance.pk, "what": what, "fields": shown})

    def _is_shown(self, sender: type[Model]) -> bool:
        is_own = threading.get_ident() == self._thread and sender._meta.db_table not in own_tables()
        return is_own and len(self.rows) < MOST


def _plain(value: Any) -> Any:
    """A value as plain data. The database computes expressions, so they are shown as text."""
    return value if value is None or isinstance(value, str | int | float | bool | list | dict) else str(value)[:1000]


@cache
def _models() -> dict[str, str]:
    every = apps.get_models(include_auto_created=True)
    return {model._meta.db_table: model._meta.label for model in every}
