"""The copy of a database: what has changed in it, and the way back."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps
from django.db import Error, OperationalError, ProgrammingError, connections, router
from django.db.models import Model

from jobs.store import databases

Row = dict[str, Any]

#: The schema of a copy that keeps the rows as they were.
FROZEN = "jobs_frozen"

#: The comment on a copy says which database it is a copy of.
MARK = "jobs crashtest: a copy of {}"

#: PostgreSQL's codes for "others are connected to it" and "the role may not do that".
IN_USE, NOT_ALLOWED = "55006", "42501"


class Change(NamedTuple):
    """A row that has changed. ``before`` is empty for a new row, ``after`` for a deleted one."""

    model: type[Model]
    key: str
    before: Row
    after: Row


class Copy:
    #: A column, as it is compared and shown.
    value = "{}"

    def __init__(self, alias: str, name: str) -> None:
        #: There are several if a test mirrors the database.
        self.aliases = [alias]
        connection = connections[alias]
        tables = set(connection.introspection.table_names())
        self.models: list[type[Model]] = [
            model
            for model in apps.get_models(include_auto_created=True)
            if model._meta.managed and not model._meta.proxy and model._meta.db_table in tables
            and router.allow_migrate_model(alias, model)
        ]  # fmt: skip
        #: The ``NAME`` of the copy.
        self.name = name
        self._quote = connection.ops.quote_name

    def freeze(self) -> None:
        """Keep the present state: :meth:`restore` goes back to it."""
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        """Remove the copy."""

    def _table(self, model: type[Model]) -> tuple[str, list[str]]:
        """The name of its table, and the names of the columns."""
        return self._quote(model._meta.db_table), [self._quote(each.column) for each in _fields(model)]

    def changes(self) -> list[Change]:
        """What differs from the frozen state."""
        sides: list[tuple[dict[str, Row], dict[str, Row]]] = [({}, {}) for _ in self.models]
        for number, side, *values in self._unlike():
            model = self.models[number]
            row = dict(zip([each.attname for each in _fields(model)], self._read(values), strict=True))
            sides[number][side][_key(model, row)] = row
        return [
            Change(model, key, before.get(key, {}), after.get(key, {}))
            for model, (before, after) in zip(self.models, sides, strict=True)
            for key in before | after
        ]

    def _unlike(self) -> Iterable[Sequence[Any]]:
        """The rows that are on one side only: the number of the model, the side (0: before, 1: after), the values."""
        for sql in self._comparisons("{}"):
            yield from self.execute(sql)

    def _comparisons(self, values: str) -> Iterator[str]:
        for number, model in enumerate(self.models):
            table, columns = self._table(model)
            row = values.format(", ".join(map(self.value.format, columns)))
            for side, (one, other) in enumerate(((f"{FROZEN}.{table}", table), (table, f"{FROZEN}.{table}"))):
                yield f"SELECT {number}, {side}, {row} FROM {one} EXCEPT SELECT {number}, {side}, {row} FROM {other}"

    def _read(self, values: Sequence[Any]) -> Iterable[Any]:
        return values

    def execute(self, sql: str, *params: Any) -> list[Any]:
        """In the copy, where the frozen tables are in a schema of their own."""
        raise NotImplementedError


def _fields(model: type[Model]) -> list[Any]:
    return [each for each in model._meta.local_concrete_fields if not getattr(each, "generated", False)]


def _key(model: type[Model], row: Row) -> str:
    key: Any = model._meta.pk
    # Several fields may be the key.
    return ", ".join(str(row[each.attname]) for each in getattr(key, "fields", [key]))


class SQLiteCopy(Copy):
    def __init__(self, alias: str, directory: Path) -> None:
        super().__init__(alias, str(directory / f"{alias}.sqlite3"))
        self._frozen = str(directory / f"{alias}.frozen.sqlite3")
        with closing(sqlite3.connect(self.name)) as copy:
            connections[alias].connection.backup(copy)

    def freeze(self) -> None:
        with closing(sqlite3.connect(self.name)) as copy, closing(sqlite3.connect(self._frozen)) as frozen:
            copy.backup(frozen)

    def restore(self) -> None:
        for path in Path(self.name).parent.glob(f"{Path(self.name).name}*"):
            path.unlink()
        shutil.copyfile(self._frozen, self.name)

    def execute(self, sql: str, *params: Any) -> list[Any]:
        with closing(sqlite3.connect(self.name)) as connection:
            connection.execute(f"ATTACH ? AS {FROZEN}", [self._frozen])
            return connection.execute(sql, params).fetchall()


class PostgresCopy(Copy):
    #: As text, because JSON has no equality.
    value = "to_json({})::text"

    def __init__(self, alias: str) -> None:
        original = str(connections[alias].settings_dict["NAME"])
        super().__init__(alias, f"{original[:50]}_crashtest")
        self._is_frozen = False
        databases.close_all()
        databases.release_all()
        connections.close_all()
        self._drop_earlier(original)
        try:
            self._admin(f'CREATE DATABASE "{self.name}" TEMPLATE "{original}"')
            mark = MARK.format(original).replace("'", "''")
            self._admin(f"COMMENT ON DATABASE \"{self.name}\" IS '{mark}'")
        except (OperationalError, ProgrammingError) as exc:
            code, role = databases.sqlstate(exc), connections[alias].settings_dict["USER"]
            if code not in (IN_USE, NOT_ALLOWED):
                raise
            cure = f"its role may not create a copy of it: ALTER ROLE {role} CREATEDB"
            raise RuntimeError(self._who_uses(original) if code == IN_USE else cure) from exc
        self._connection = databases.apart(alias).thing  # type: ignore[attr-defined]
        self._connection.settings_dict["NAME"] = self.name
        # To compile the comparison of all tables would take longer than to run it.
        self.execute("SET jit = off")
        with suppress(Error):
            # Only a superuser may do this. Otherwise a deadlock lasts a second.
            self.execute(f"ALTER DATABASE \"{self.name}\" SET deadlock_timeout = '50ms'")

    def _drop_earlier(self, original: str) -> None:
        """Drop what a killed crash test left. A database of this name that is no such copy stays."""
        about = f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = '{self.name}'"
        for (said,) in self._admin(about):
            if said != MARK.format(original):
                raise RuntimeError(
                    f"the copy would be called {self.name!r}, and there is a database of this name, which is no copy "
                    f"of {original!r} (its comment does not say so): rename it, or drop it"
                )
            try:
                self._admin(f'DROP DATABASE "{self.name}"')
            except OperationalError as exc:
                raise RuntimeError(f"another crash test is at work: {self._who_uses(self.name)}") from exc

    def _who_uses(self, name: str) -> str:
        sql = f"SELECT pid, application_name FROM pg_stat_activity WHERE datname = '{name}'"
        others = ", ".join(f"{who or 'unnamed'} (process {pid})" for pid, who in self._admin(sql)) or "somebody"
        return (
            f"the database {name!r} cannot be copied while others are connected to it: {others}. Close them for a "
            "moment (workers, servers, consoles, threads of the test)"
        )

    def freeze(self) -> None:
        changed = self._changed() if self._is_frozen else {self._table(model)[0] for model in self.models}
        sql = f"CREATE SCHEMA IF NOT EXISTS {FROZEN}"
        for table in changed:
            sql += f"; DROP TABLE IF EXISTS {FROZEN}.{table}; CREATE TABLE {FROZEN}.{table} AS TABLE {table}"
        self.execute(sql)
        self._is_frozen = True

    def restore(self) -> None:
        # The connection of a killed process may still hold locks.
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND usename = current_user"
        )
        changed = self._changed()
        # In one transaction, because foreign keys are checked at its end.
        parts = ["BEGIN", "SET CONSTRAINTS ALL DEFERRED", *(f"DELETE FROM {table}" for table in changed)]
        for table, columns in changed.items():
            parts.append(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {FROZEN}.{table}")
        self.execute("; ".join([*parts, "COMMIT"]))

    def _changed(self) -> dict[str, str]:
        """Tables, and their columns."""
        found = map(self._table, {each.model for each in self.changes()})
        return {table: ", ".join(columns) for table, columns in found}

    def drop(self) -> None:
        self._connection.close()
        self._admin(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def _unlike(self) -> Iterable[Sequence[Any]]:
        # In one statement: there may be a hundred tables, and it is asked twice for each kill.
        parts = (f"({sql})" for sql in self._comparisons("ARRAY[{}]"))
        return ((number, side, *values) for number, side, values in self.execute(" UNION ALL ".join(parts)))

    def _read(self, values: Sequence[Any]) -> Iterable[Any]:
        return (each and json.loads(each) for each in values)

    def execute(self, sql: str, *params: Any) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params or None)
            return cursor.fetchall() if cursor.description else []

    def has_waiting(self, name: str) -> bool:
        """Whether a connection of this name waits for a lock."""
        waits = "datname = current_database() AND wait_event_type = 'Lock'"
        return bool(self.execute(f"SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND {waits}", name))

    def _admin(self, sql: str) -> list[Any]:
        with connections[self.aliases[0]]._nodb_cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []
