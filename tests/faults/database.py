"""The database of a scenario: its own, a copy of a migrated one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.management import call_command
from django.db import connection, connections

from jobs import publisher
from tests.servers import Postgres, Server, wait_for

SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


class Database:
    """PostgreSQL or SQLite; ``server`` is PostgreSQL's, to kill, pause and start again."""

    name = ""

    def __init__(self, url: str, server: Server | None = None) -> None:
        self.url = url
        self._server = server

    @property
    def server(self) -> Server:
        assert self._server is not None, f"{self.name} has no server"
        return self._server

    def kill(self) -> None:
        """SIGKILL to all processes of the server; what was committed is there again after ``start``."""
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def slow_commits(self, seconds: float) -> None:
        """Let a transaction that left an effect with the note "slow commit" take its time inside the COMMIT."""
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$"
            )
            cursor.execute(
                "CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON tests_effect DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW WHEN (NEW.note = 'slow commit') EXECUTE FUNCTION slow_commit()"
            )

    def wait_inside_commit(self) -> None:
        # Whatever statement it is: a scenario without its guard commits another way.
        sql = "SELECT count(*) FROM pg_stat_activity WHERE query NOT ILIKE '%pg_sleep%' AND wait_event = 'PgSleep'"

        def found() -> int:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return int(cursor.fetchone()[0])

        wait_for(found, 30, "somebody is inside a slow COMMIT")

    @contextmanager
    def copied(self, how: str) -> Iterator[None]:
        """Make a copy while everybody works, and point this process, and what it starts, at it in the block.

        Parameters:
            how: ``"files"`` (PostgreSQL: a template, for which it shuts everybody out for a moment), or ``"dump"``.
        """
        if self._server is None:
            name = self.url.removeprefix("sqlite:///")
            _copy_files(name, f"{name}.copy") if how == "files" else _dump_file(name, f"{name}.copy")
            with use(f"{self.url}.copy"):
                yield
            return
        server: Any = self._server
        name = self.url.rpartition("/")[2]
        if how == "files":
            server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            wait_for(lambda: _succeeds(server.create_database, f"{name}_copy", name), 10, "nobody is connected")
            server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            connection.close()
        else:
            server.dump(self.url, server.create_database(f"{name}_copy"))
        try:
            with use(f"{self.url}_copy"):
                yield
        finally:
            server.drop_database(f"{name}_copy")

    def mend(self) -> None:
        if self._server is not None:
            self._server.resume()
            if not self._server.is_running:
                self._server.start()


def _succeeds(action: Callable[..., object], *args: str) -> bool:
    try:
        action(*args)
    except Exception:
        return False
    return True


def _copy_files(source: str, target: str) -> None:
    """As ``cp`` does, with the journals, and nobody writing meanwhile; and so the messages of a jobs:// broker."""
    for suffix in ("", ".broker"):
        if not Path(source + suffix).exists():
            continue
        lock = sqlite3.connect(source + suffix, timeout=20, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for journal in ("", "-wal"):
            if Path(source + suffix + journal).exists():
                shutil.copy2(source + suffix + journal, target + suffix + journal)
        lock.close()


def _dump_file(source: str, target: str) -> None:
    """As SQL text. The messages of a jobs:// broker are in a file of their own, and left behind."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        new.executescript("\n".join(old.iterdump()))


class PostgresTemplate:
    """A migrated database on a PostgreSQL server, of which every scenario gets a copy."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        with use(server.create_database("template")):
            call_command("migrate", run_syncdb=True, verbosity=0)
        self._copies = 0

    @contextmanager
    def copy(self, directory: Path) -> Iterator[Database]:
        self._copies += 1
        name = f"scenario{self._copies}"
        database = Database(self.server.create_database(name, template="template"), self.server)
        try:
            with use(database.url):
                yield database
        finally:
            database.mend()
            self.server.drop_database(name)


class SqliteTemplate:
    """A migrated file, of which every scenario gets a copy."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "template.sqlite3"
        with use(f"sqlite:///{self.file}"):
            call_command("migrate", run_syncdb=True, verbosity=0)

    @contextmanager
    def copy(self, directory: Path) -> Iterator[Database]:
        file = shutil.copy(self.file, directory / "scenario.sqlite3")
        with use(f"sqlite:///{file}"):
            yield Database(f"sqlite:///{file}")


@contextmanager
def use(url: str) -> Iterator[None]:
    """Point this process, and the processes that it starts, at the database."""
    before = connections.settings["default"]
    config: dict[str, Any] = {**dj_database_url.parse(url, conn_max_age=60)}
    if url.startswith("sqlite"):
        config["OPTIONS"] = dict(SQLITE_OPTIONS)
    _replace(connections.configure_settings({"default": config})["default"])
    try:
        yield
    finally:
        _replace(before)


def _replace(config: dict[str, Any]) -> None:
    publisher.forget_connections()
    connections["default"].close()
    del connections["default"]
    connections.settings["default"] = config
