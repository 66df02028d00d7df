"""The column of a job's row that has its tags, and the index that finds them.

Tags have no table of their own: they are written with the call's one statement, go to history with the row, and are
deleted with it. On PostgreSQL the index finds a tag; elsewhere it is scanned, but holds only the jobs with tags.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Self

from django.contrib.postgres.indexes import GinIndex
from django.db.models import Lookup, Q
from django.db.models.query_utils import DeferredAttribute
from django.utils.translation import gettext_lazy as _

from jobs.models.fields import Labels
from jobs.models.values import MAX_KEY, _text, plain

NAME = re.compile(r"[A-Za-z_][\w.-]{0,49}", re.ASCII)


class Tags(dict[str, str]):
    """The names and texts of a job's tags."""

    def __str__(self) -> str:
        return json.dumps(self, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of(cls, given: Mapping[str, Any], what: str = "tags") -> Self:
        """The given tags, checked: ``{"user": 5}`` and ``{"user": "5"}`` are the same.

        Raises:
            TypeError: not a dict, or a value that is not text, a whole number or a UUID.
            ValueError: a name that is not valid, an empty text, or more than fits.
        """
        if not isinstance(given, Mapping):
            raise TypeError(f"{what}: pass names with their values, {{'user': 5}}, and not {given!r}")
        tags = cls()
        for name, value in given.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ValueError(f"{what}: {name!r} must be a name of at most 50 letters, digits, '_', '.' and '-'")
            if isinstance(value, bool) or not isinstance(value, str | int | uuid.UUID):
                cure = "pass text, a whole number or a UUID, such as user.pk"
                raise TypeError(f"{what}: {name}={value!r} cannot be a tag: {cure}")
            if not (text := _text(plain(value), f"{what}[{name!r}]")):
                raise ValueError(f"{what}: {name} is empty: leave it out, or say what the job is about")
            tags[name] = text
        if len(str(tags)) > MAX_KEY:
            cure = f"{MAX_KEY} characters of JSON are kept: tag a job with keys of what it is about"
            raise ValueError(f"{what}: {str(tags)[:40]}... has {len(str(tags))} characters, and {cure}")
        return tags


class _Read(DeferredAttribute):
    """A claim reads the tags as JSON text. They are decoded at the first access."""

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        value = super().__get__(instance, cls)
        if isinstance(value, str):
            found = json.loads(value)
            # A person may have edited the row by hand.
            value = instance.__dict__[self.field.attname] = Tags(found if isinstance(found, dict) else {})
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.field.attname] = value


class TagsField(Labels):
    descriptor_class = _Read
    #: ``jobs show`` and ``jobs list --json`` print it.
    is_told = True

    def get_prep_value(self, value: Any) -> Any:
        return str(Tags.of(value)) if isinstance(value, Mapping) else super().get_prep_value(value)

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "jobs.models.fields.Labels", args, kwargs


@TagsField.register_lookup
class Have(Lookup):
    """True for jobs that have these tags: ``tags__have={"user": 5}``. PostgreSQL's index finds them."""

    lookup_name = "have"

    def get_prep_lookup(self) -> Tags:
        return Tags.of(self.rhs)

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        lhs, params = self.process_lhs(compiler, connection)
        # The text of a pair cannot occur inside of a value: there, quotation marks are escaped.
        pairs = [str(Tags({name: text}))[1:-1] for name, text in self.rhs.items()]
        # The first part is the condition of the index. The index has the tags, so other rows are not read.
        found = " AND ".join([f"{lhs} IS NOT NULL", *[f"instr({lhs}, %s) > 0"] * len(pairs)])
        return f"({found})", [*list(params) * (1 + len(pairs)), *pairs]

    def as_postgresql(self, compiler: Any, connection: Any) -> Any:
        lhs, params = self.process_lhs(compiler, connection)
        return f"{lhs} @> %s::jsonb", [*params, str(self.rhs)]


COLUMNS: dict[str, Any] = {"tags": TagsField(_("tags"), max_length=MAX_KEY, null=True)}
INDEXES = [
    # A btree on databases without GIN.
    GinIndex(name="jobs_job_tags", fields=["tags"], opclasses=["jsonb_path_ops"], condition=Q(tags__isnull=False))
]
OPTIONS = {"tags": ("a dict of names and texts, {'user': 5}", (Mapping,))}
