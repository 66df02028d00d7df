"""Copies of the databases. A run may change a copy; the change is read and then undone. The originals stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from django.db import Error, OperationalError, connections
from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]

from jobs.conf import conf
from jobs.contrib.copies.store import Copy, PostgresCopy, SQLiteCopy


@contextmanager
def copied(directory: Path) -> Iterator[list[Copy]]:
    """Have a copy of each database that the test may use, for the length of a block; files are in the directory.

    Raises:
        RuntimeError: this kind of database cannot be copied, or others are connected to it.
    """
    found: dict[Any, Copy] = {}
    try:
        for alias in connections:
            try:
                # It may be open already, from before the test: then Django forbids only what is asked over it.
                with connections[alias].cursor():
                    pass
            except (Error, DatabaseOperationForbidden):
                if alias in conf().DATABASES:
                    raise
                continue
            vendor, settings = connections[alias].vendor, connections[alias].settings_dict
            place = tuple(str(settings[key]) for key in ("HOST", "PORT", "NAME"))
            if place in found:
                found[place].aliases.append(alias)
            elif vendor == "sqlite":
                found[place] = SQLiteCopy(alias, directory)
            elif vendor == "postgresql":
                found[place] = PostgresCopy(alias)
            else:
                raise RuntimeError(f"a run can be killed on SQLite and PostgreSQL, and {alias!r} is {vendor}")
        yield list(found.values())
    finally:
        for copy in found.values():
            with suppress(Error):
                copy.drop()


def use(copies: Iterable[Copy]) -> None:
    """In a child: each alias leads to its copy from now on. A database that could not be reached stays unreachable."""
    names = {alias: copy.name for copy in copies for alias in copy.aliases}
    for alias in connections:
        if alias in names:
            for settings in (connections[alias].settings_dict, connections.settings[alias]):
                settings["NAME"] = names[alias]
        else:
            connections[alias].connect = partial(_refuse, alias)  # type: ignore[method-assign]
            # Other threads have other connections.
            connections.settings[alias]["ENGINE"] = "django.db.backends.dummy"


def _refuse(alias: str) -> None:
    raise OperationalError(f"the database {alias!r} could not be reached, and has no copy")
