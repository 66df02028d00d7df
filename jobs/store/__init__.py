"""The databases that jobs live in: the SQL of the core, and what depends on which database it is.

Extensions keep their SQL in their own folders.

:func:`of` returns the store of a database. ``base.py`` defines what every store can do, in terms of any database.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections, router
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import import_string

from jobs import extensions
from jobs.conf import conf
from jobs.models import tables
from jobs.store.base import Store
from jobs.store.postgresql import PostgreSQL
from jobs.store.sqlite import SQLite

_KINDS: dict[str, Any] = {"postgresql": PostgreSQL, "sqlite": SQLite}


def install() -> None:
    """Called in each process: prepare each new connection, and add what ``migrate`` leaves out on a database."""
    connection_created.connect(_prepare, dispatch_uid="jobs.store.prepare")
    post_migrate.connect(_complete, dispatch_uid="jobs.store.complete")


def _prepare(connection: Any, **kwargs: Any) -> None:
    if connection.alias in conf().DATABASES:
        of(connection.alias).prepare(connection)


def _complete(app_config: Any, using: str, **kwargs: Any) -> None:
    # Django's ``flush`` sends the signal as well, without a plan: it changes no schema.
    ours = [model for model in router.get_migratable_models(app_config, using) if model in tables()]
    if ours and "plan" in kwargs:
        of(using).complete_schema(ours)


@cache
def of(using: str) -> Store:
    """The store of a database, by its alias."""
    vendor = connections[using].vendor
    kind = import_string(path) if (path := extensions.merged("stores").get(vendor)) else _KINDS.get(vendor, Store)
    return extensions.instead(kind)(using)
