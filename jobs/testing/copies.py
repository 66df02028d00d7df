"""Copies of the databases, which runs may spoil: what changed in them is read, and taken back. The originals stay."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import Error, OperationalError, ProgrammingError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.utils import load_backend
from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]

from jobs.conf import conf
from jobs.database import databases

Row = dict[str, Any]

#: Where the rows stand as they were.
FROZEN = "jobs_frozen"

#: The comment of a copy: of which database.
MARK = "jobs crashtest: a copy of {}"

#: PostgreSQL's codes: others are connected to it; the role may not do that.
IN_USE, NOT_ALLOWED = "55006", "42501"


@dataclass
class Changes:
    """What is not as it was in one table: rows by their key, and those that are new."""

    model: type[Model]
    gone: dict[Any, Row] = field(default_factory=dict)
    changed: dict[Any, tuple[Row, Row]] = field(default_factory=dict)
    new: list[Row] = field(default_factory=list)

    @property
    def now(self) -> list[Row]:
        return [row for _, row in self.changed.values()] + self.new


class Copy:
    """
    Parameters:
        aliases: of the database; several if a test mirrors it.
        directory: for the files of the copy.
    """

    #: Whether it says who waits for a lock.
    knows_waits = False

    def __init__(self, alias: str, directory: Path) -> None:
        self.alias, self.aliases, self.directory = alias, [alias], directory
        connection = connections[alias]
        tables = set(connection.introspection.table_names())
        self.models = [
            model
            for model in apps.get_models(include_auto_created=True)
            if model._meta.managed and not model._meta.proxy and model._meta.db_table in tables
            and router.allow_migrate_model(alias, model)
        ]  # fmt: skip
        #: What the copy goes by, in ``NAME``.
        self.name = ""

    def use(self) -> None:
        """In a child: its aliases are the copy from now on."""
        for alias in self.aliases:
            for settings in (connections[alias].settings_dict, connections.settings[alias]):
                settings["NAME"] = self.name

    def changes(self) -> list[Changes]:
        """What differs from the frozen state."""
        found = []
        for model in self._changed():
            names = [each.attname for each in _fields(model)]
            before, after = ([dict(zip(names, row, strict=True)) for row in rows] for rows in self._differing(model))
            keys = _key_names(model)
            old = {tuple(row[name] for name in keys): row for row in before}
            changes = Changes(model)
            for row in after:
                key = tuple(row[name] for name in keys)
                if key in old:
                    changes.changed[key] = (old.pop(key), row)
                else:
                    changes.new.append(row)
            changes.gone = old
            found.append(changes)
        return found

    def freeze(self) -> None:
        """The state as it is now is the one that it goes back to."""
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        """It is not needed any more."""

    def waits(self, name: str) -> bool:
        """Whether a process whose connections have this name waits for a lock."""
        return False

    def _changed(self) -> Sequence[type[Model]]:
        return self.models

    def _differing(self, model: type[Model]) -> tuple[list[Any], list[Any]]:
        """The rows that are not as they were: as they were, and as they are."""
        raise NotImplementedError


def _fields(model: type[Model]) -> list[Any]:
    return [each for each in model._meta.local_concrete_fields if not getattr(each, "generated", False)]


def _key_names(model: type[Model]) -> list[str]:
    key: Any = model._meta.pk
    return [each.attname for each in getattr(key, "fields", [key])]


def copies_of_all(directory: Path) -> list[Copy]:
    """A copy of each database that the test may use.

    Raises:
        RuntimeError: there are no such copies of this kind of database; or others are connected to it.
    """
    found: list[Copy] = []
    kinds: dict[str, type[Copy]] = {"sqlite": SQLiteCopy, "postgresql": PostgresCopy}
    by_place: dict[Any, Copy] = {}
    try:
        for alias in connections:
            try:
                connections[alias].ensure_connection()
            except DatabaseOperationForbidden:
                if alias in conf().DATABASES:
                    raise
                continue
            except Error:
                if alias in conf().DATABASES:
                    raise
                found.append(Absent(alias))
                continue
            vendor, settings = connections[alias].vendor, connections[alias].settings_dict
            place = tuple(str(settings[key]) for key in ("HOST", "PORT", "NAME"))
            if vendor not in kinds:
                raise RuntimeError(f"a run can be killed on SQLite and PostgreSQL, and {alias!r} is {vendor}")
            if place in by_place:
                by_place[place].aliases.append(alias)
            else:
                by_place[place] = kinds[vendor](alias, directory)
                found.append(by_place[place])
    except BaseException:
        drop(found)
        raise
    return found


def drop(copies: Sequence[Copy]) -> None:
    for copy in copies:
        with suppress(Error):
            copy.drop()


class Absent(Copy):
    """A database that cannot be reached. If it came back, the runs would meet the original: there they find none."""

    def __init__(self, alias: str) -> None:
        self.alias, self.aliases, self.models = alias, [alias], []

    def use(self) -> None:
        def refuse() -> None:
            raise OperationalError(f"the database {self.alias!r} could not be reached, and has no copy")

        connections[self.alias].connect = refuse  # type: ignore[method-assign]
        # Of other threads.
        connections.settings[self.alias]["ENGINE"] = "django.db.backends.dummy"

    def freeze(self) -> None:
        """There is nothing."""

    def restore(self) -> None:
        """There is nothing."""


class SQLiteCopy(Copy):
    def __init__(self, alias: str, directory: Path) -> None:
        super().__init__(alias, directory)
        self.name = str(directory / f"{alias}.sqlite3")
        self._frozen = str(directory / f"{alias}.frozen.sqlite3")
        with closing(sqlite3.connect(self.name)) as copy:
            connections[alias].connection.backup(copy)

    def freeze(self) -> None:
        with closing(sqlite3.connect(self.name)) as copy, closing(sqlite3.connect(self._frozen)) as frozen:
            copy.backup(frozen)

    def restore(self) -> None:
        for path in self.directory.glob(f"{self.alias}.sqlite3*"):
            path.unlink()
        shutil.copyfile(self._frozen, self.name)

    def changes(self) -> list[Changes]:
        with closing(sqlite3.connect(self.name)) as self._connection:
            self._connection.execute("ATTACH ? AS frozen", [self._frozen])
            return super().changes()

    def _differing(self, model: type[Model]) -> tuple[list[Any], list[Any]]:
        quote = connections[self.alias].ops.quote_name
        columns, table = ", ".join(quote(each.column) for each in _fields(model)), quote(model._meta.db_table)
        before, after = (
            self._connection.execute(
                f"SELECT {columns} FROM {one}.{table} EXCEPT SELECT {columns} FROM {other}.{table}"
            ).fetchall()
            for one, other in (("frozen", "main"), ("main", "frozen"))
        )
        return before, after


class PostgresCopy(Copy):
    knows_waits = True

    def __init__(self, alias: str, directory: Path) -> None:
        super().__init__(alias, directory)
        original = str(connections[alias].settings_dict["NAME"])
        self.name = f"{original[:50]}_crashtest"
        self._frozen: set[str] = set()
        self._close_all()
        self._drop_earlier(original)
        try:
            self._admin(f'CREATE DATABASE "{self.name}" TEMPLATE "{original}"')
            mark = MARK.format(original).replace("'", "''")
            self._admin(f"COMMENT ON DATABASE \"{self.name}\" IS '{mark}'")
        except (OperationalError, ProgrammingError) as exc:
            code = databases.sqlstate(exc)
            if code not in (IN_USE, NOT_ALLOWED):
                raise
            cure = (
                f"its role may not create a copy of it: ALTER ROLE {connections[alias].settings_dict['USER']} CREATEDB"
            )
            raise RuntimeError(self._who_uses(original) if code == IN_USE else cure) from exc
        main = connections[alias].settings_dict
        options = {key: value for key, value in main["OPTIONS"].items() if key != "pool"}
        settings = {**main, "NAME": self.name, "OPTIONS": options, "CONN_MAX_AGE": None, "AUTOCOMMIT": True}
        self._connection: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, alias)
        with suppress(Error):
            # For superusers only; a second otherwise.
            self._execute(f"ALTER DATABASE \"{self.name}\" SET deadlock_timeout = '50ms'")

    def _drop_earlier(self, original: str) -> None:
        """What a crash test left that was killed; nothing else that is called so."""
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

    def _close_all(self) -> None:
        databases.close_all()
        databases.release_all()
        connections.close_all()

    def _admin(self, sql: str) -> list[Any]:
        with connections[self.alias]._nodb_cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def _who_uses(self, name: str) -> str:
        sql = f"SELECT pid, application_name FROM pg_stat_activity WHERE datname = '{name}'"
        others = ", ".join(f"{who or 'unnamed'} (process {pid})" for pid, who in self._admin(sql)) or "somebody"
        return (
            f"the database {name!r} cannot be copied while others are connected to it: {others}. Close them for a "
            "moment (workers, servers, consoles, threads of the test)"
        )

    def freeze(self) -> None:
        quote = self._connection.ops.quote_name
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {FROZEN}")
            for model in self.models if not self._frozen else self._changed():
                table = quote(model._meta.db_table)
                if model._meta.db_table in self._frozen:
                    cursor.execute(f"DROP TABLE {FROZEN}.{table}")
                cursor.execute(f"CREATE TABLE {FROZEN}.{table} AS TABLE {table}")
            self._frozen = {model._meta.db_table for model in self.models}

    def restore(self) -> None:
        # What a killed process left, which holds locks.
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND usename = current_user"
        )
        changed = self._changed()
        quote = self._connection.ops.quote_name
        with closing(self._connection.cursor()) as cursor:
            # In one transaction: foreign keys are looked at in its end.
            cursor.execute("BEGIN; SET CONSTRAINTS ALL DEFERRED")
            for model in changed:
                cursor.execute(f"DELETE FROM {quote(model._meta.db_table)}")
            for model in changed:
                columns, table = self._columns(model), quote(model._meta.db_table)
                cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {FROZEN}.{table}")
            cursor.execute("COMMIT")

    def drop(self) -> None:
        self._connection.close()
        self._admin(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def waits(self, name: str) -> bool:
        sql = (
            "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND datname = current_database() "
            "AND wait_event_type = 'Lock'"
        )
        return bool(self._execute(sql, name))

    def _execute(self, sql: str, *params: Any) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    def _columns(self, model: type[Model]) -> str:
        return ", ".join(self._connection.ops.quote_name(each.column) for each in _fields(model))

    def _changed(self) -> Sequence[type[Model]]:
        def differs(model: type[Model]) -> str:
            table = self._connection.ops.quote_name(model._meta.db_table)
            counts = (f"(SELECT count(*) FROM {each})" for each in (table, f"{FROZEN}.{table}"))
            return f"EXISTS ({self._missing(table, f'{FROZEN}.{table}', '1')}) OR {' <> '.join(counts)}"

        parts = (f"SELECT {number} WHERE {differs(model)}" for number, model in enumerate(self.models))
        return [self.models[number] for (number,) in self._execute(" UNION ALL ".join(parts))]

    def _missing(self, one: str, other: str, columns: str) -> str:
        """Those of one that are not in the other, whatever types they have (JSON knows no equality)."""
        return (
            f"SELECT {columns} FROM {one} AS jobs_one WHERE NOT EXISTS "
            f"(SELECT 1 FROM {other} AS jobs_other WHERE jobs_one::text = jobs_other::text)"
        )

    def _differing(self, model: type[Model]) -> tuple[list[Any], list[Any]]:
        columns, table = self._columns(model), self._connection.ops.quote_name(model._meta.db_table)
        frozen = f"{FROZEN}.{table}"
        before, after = self._missing(frozen, table, columns), self._missing(table, frozen, columns)
        return self._execute(before), self._execute(after)
