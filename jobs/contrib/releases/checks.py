"""What a worker says at its start of releases with which the tests were not run, and of private names that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from platform import python_version
from typing import Any

from django.core.checks import CheckMessage
from django.db import connections

from jobs import store
from jobs.contrib.checks.system import OF_DATABASE, OF_WORKER, add_texts, say
from jobs.contrib.releases import private_names
from jobs.store.postgresql import PostgreSQL

add_texts("""
E018 Other packages changed what jobs relies on, and is private to them: {names}.
  -> Install the releases that jobs is tested with ({tested}), or a newer jobs.
W022 jobs was not tested with {names}.
  -> What it needs of them is there. Install {tested}, or watch this worker.
""")

#: The releases that the tests run with; ``noxfile.py`` has the combinations.
TESTED = {
    "Python": ["3.11", "3.12", "3.13"],
    "Django": ["5.2", "6.0", "6.1"],
    "celery": ["5.5", "5.6", "5.7"],
    "kombu": ["5.5", "5.6", "5.7"],
    "billiard": ["4.2", "4.3"],
}

#: Releases of PostgreSQL whose servers the tests were run on.
SERVERS = (15, 16, 18)


@OF_WORKER.append
def private(worker: Any) -> Iterator[CheckMessage]:
    if gone := private_names.missing():
        yield say("E018", names="; ".join(gone), tested=_tested())


@OF_WORKER.append
def untested(worker: Any) -> Iterator[CheckMessage]:
    here = {name: python_version() if name == "Python" else version(name) for name in TESTED}
    minor = {name: ".".join(release.split(".")[:2]) for name, release in here.items()}
    if odd := [f"{name} {here[name]}" for name, tested in TESTED.items() if minor[name] not in tested]:
        yield say("W022", names=", ".join(odd), tested=_tested())


@OF_DATABASE.append
def untested_server(alias: str) -> Iterator[CheckMessage]:
    connection: Any = connections[alias]
    if isinstance(store.of(alias), PostgreSQL) and (major := connection.pg_version // 10_000) not in SERVERS:
        yield say("W022", names=f"PostgreSQL {major}", tested=f"PostgreSQL {' or '.join(map(str, SERVERS))}")


def _tested() -> str:
    return ", ".join(f"{name} {' or '.join(releases)}" for name, releases in TESTED.items())
