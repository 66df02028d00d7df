"""UPDATEs that are compiled once. For the two that every run needs, building the SQL costs more than running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.models import Expression, Model, QuerySet
from django.db.models.sql import UpdateQuery


class Slot(Expression):
    """A place in a statement for a value that comes when it is executed."""

    def __init__(self, model: type[Model], field: str) -> None:
        """The value is what the ``field`` of the ``model`` holds, and goes by its name."""
        kind: Any = model._meta.get_field(field)
        super().__init__(output_field=kind.target_field if kind.is_relation else kind)
        self.name = field

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", (self,)


class Update:
    """An UPDATE of one row.

    Parameters:
        build: returns for a database alias the rows and what to set, with a :class:`Slot` for every value that varies.
    """

    def __init__(self, build: Callable[[str], tuple[QuerySet[Any], dict[str, Any]]]) -> None:
        self.build = build
        self._compiled: dict[tuple[str, str], tuple[type[Model], str, tuple[Any, ...]]] = {}

    def execute(self, using: str, **values: Any) -> bool:
        """Whether there was such a row."""
        _, sql, params = self._compile(using, values)
        with connections[using].cursor() as cursor:
            cursor.execute(sql, params)
            return bool(cursor.rowcount == 1)

    def returning(self, using: str, **values: Any) -> Any:
        """The row as it is now, or None; only where the database has UPDATE ... RETURNING."""
        model, sql, params = self._compile(using, values)
        quote = connections[using].ops.quote_name
        columns = ", ".join(
            f"{quote(model._meta.db_table)}.{quote(str(f.column))}" for f in model._meta.concrete_fields
        )
        rows = list(model._default_manager.raw(f"{sql} RETURNING {columns}", params, using=using))
        return rows[0] if rows else None

    def _compile(self, using: str, values: dict[str, Any]) -> tuple[type[Model], str, tuple[Any, ...]]:
        connection = connections[using]
        key = (using, connection.vendor)
        if key not in self._compiled:
            rows, changes = self.build(using)
            query = rows.query.chain(UpdateQuery)
            query.add_update_values(changes)  # type: ignore[attr-defined]
            self._compiled[key] = (rows.model, *query.get_compiler(using).as_sql())
        model, sql, params = self._compiled[key]
        filled = (
            param.output_field.get_db_prep_save(values[param.name], connection=connection)
            if isinstance(param, Slot)
            else param
            for param in params
        )
        return model, sql, tuple(filled)
