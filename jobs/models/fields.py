"""Columns that Django has no field for, and ids that sort by time."""

import datetime
import json
import os
import time
import uuid
from typing import Any

from django.core.checks import CheckMessage
from django.db.models import CharField, JSONField, Model, Q
from django.db.models.fields.json import KeyTransformFactory
from django.db.models.functions import Cast
from django.db.models.lookups import In

from jobs.models.values import decoded

#: On MySQL, Django warns that it leaves out conditional indexes and unique constraints, and of long unique texts. The
#: store makes up for the first two; long unique texts work with the default row format since MySQL 5.7.
ANSWERED = ("models.W036", "models.W037", "mysql.W003")


class Completed(Model):
    """A table without Django's warnings of what it leaves out on MySQL: ``jobs.store`` creates that."""

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        return [each for each in super().check(**kwargs) if each.id not in ANSWERED]


class JSONText(JSONField):
    """JSON as it was written: ``json`` on PostgreSQL: ``jsonb`` changes the order of keys, ``1e16`` and ``-0.0``.

    On PostgreSQL it is cast to ``jsonb`` for comparisons and look-ups of keys.
    """

    def db_type(self, connection: Any) -> str | None:
        return "json" if connection.vendor == "postgresql" else super().db_type(connection)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        value = super().get_db_prep_value(value, connection, prepared)
        # The wrapper of psycopg 3, or psycopg2, would send it as jsonb, which sorts the keys.
        for name in ("obj", "adapted"):
            if hasattr(value, name):
                return json.dumps(getattr(value, name))
        return value

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        # The driver has decoded it already.
        return value if connection.vendor == "postgresql" else super().from_db_value(value, expression, connection)

    def get_transform(self, name: str) -> Any:
        transform = super(JSONField, self).get_transform(name)
        return transform or (lambda lhs: KeyTransformFactory(name)(Cast(lhs, JSONField())))

    def get_lookup(self, lookup_name: str) -> Any:
        lookup = super().get_lookup(lookup_name)
        if lookup is None or lookup_name == "isnull":
            return lookup

        class Casting(lookup):  # type: ignore[misc,valid-type]
            def __init__(self, lhs: Any, rhs: Any) -> None:
                super().__init__(Cast(lhs, JSONField()), rhs)

        return Casting


class Typed(JSONText):
    """The same, but values are read with the types that they were written with (``jobs.models.values``)."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return decoded(super().from_db_value(value, expression, connection))


class Sparse(JSONText):
    """The same, empty in most rows: an empty list or dict is NULL in the database, and takes no space."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return super().get_db_prep_value(value, connection, prepared) if value else None

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return self.get_default() if value is None else super().from_db_value(value, expression, connection)


class Labels(CharField):
    """A short JSON document of names and texts, to find rows by: ``jsonb`` on PostgreSQL, text elsewhere."""

    def db_type(self, connection: Any) -> str | None:
        return "jsonb" if connection.vendor == "postgresql" else super().db_type(connection)


class Word(CharField):
    """One of its choices. SQLite uses a partial index only if the query names them literally, as its condition does.

    With parameters instead it would read the whole table.
    """

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


@Word.register_lookup
class Among(In):
    def as_sqlite(self, compiler: Any, connection: Any) -> Any:
        words = [str(word) for word in self.rhs] if self.rhs_is_direct_value() else []
        if not words or not {*words} <= {str(word) for word, _ in self.lhs.output_field.flatchoices}:
            return self.as_sql(compiler, connection)
        lhs, params = self.process_lhs(compiler, connection)
        named = ", ".join(f"'{word}'" for word in dict.fromkeys(words))
        return f"{lhs} IN ({named})", params


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
#: The year 9999, in microseconds since then.
_LAST = (datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1)


def uuid7() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562): milliseconds since 1970, 12 bits of their fraction, 62 random bits."""
    now = time.time_ns()
    milliseconds, rest = divmod(now, 1_000_000)
    random = int.from_bytes(os.urandom(8)) & 0x3FFF_FFFF_FFFF_FFFF
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | (rest * 4096 // 1_000_000) << 64 | 0x2 << 62 | random)


def time_of(key: uuid.UUID) -> datetime.datetime | None:
    """When a UUID of version 7 was made; None for others, and for a time that not every zone can show."""
    microseconds = (key.int >> 80) * 1000 + ((key.int >> 64 & 0xFFF) * 1000 >> 12)
    is_shown = key.version == 7 and microseconds < _LAST
    return _EPOCH + datetime.timedelta(microseconds=microseconds) if is_shown else None


def first_id(moment: datetime.datetime) -> uuid.UUID:
    """The smallest UUID of version 7 that is made at ``moment`` or later."""
    milliseconds, rest = divmod(max(0, (moment - _EPOCH) // datetime.timedelta(microseconds=1)), 1000)
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | -(-rest * 4096 // 1000) << 64 | 0x2 << 62)


def created_since(moment: datetime.datetime) -> Q:
    """A condition on jobs: created at ``moment`` or later. If an id has no time in it, ``made_at`` has the time."""
    return Q(pk__gte=first_id(moment), made_at=None) | Q(made_at__gte=moment)
