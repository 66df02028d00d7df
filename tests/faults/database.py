"""The database of a scenario: its own, a copy of a migrated one."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.management import call_command
from django.db import InterfaceError, OperationalError, connection, connections

from jobs import store
from tests.conftest import not_installed, server
from tests.helpers.servers import MariaDB, Missing, PgBouncer, Postgres, Server, wait_for

SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}

#: What callers meet while their database is away.
AWAY = (OperationalError, InterfaceError)


class Database:
    """PostgreSQL or SQLite; ``server`` is the one to kill, pause and start again."""

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
        connections.close_all()

    def start(self) -> None:
        self.server.start()

    def end_connections(self) -> int:
        """Terminate all connections of others, whatever they are doing; return how many there were."""
        pids = self._find("true")
        self.end(pids)
        return len(pids)

    @contextmanager
    def exhausted(self) -> Iterator[None]:
        """Idle connections of other clients take every slot of the server; a slot that becomes free is taken too."""
        import psycopg

        idle: list[psycopg.Connection] = []
        ends = threading.Event()

        def take() -> None:
            while not ends.is_set():
                try:
                    idle.append(psycopg.connect(self.server.url))
                except psycopg.OperationalError:
                    time.sleep(0.002)

        thread = threading.Thread(target=take, name="idle clients", daemon=True)
        thread.start()
        try:
            wait_for(lambda: len(idle) > 100, 30, "many idle connections")
            # Those in use are ended, until all slots are taken.
            wait_for(lambda: not self.end_connections(), 30, "no slot is left", step=0.2)
            yield
        finally:
            ends.set()
            thread.join()
            for client in idle:
                client.close()

    @contextmanager
    def pooled(self) -> Iterator[str]:
        """PgBouncer in front of it, with transaction pooling: its URL."""
        try:
            pooler = PgBouncer(self.url)
        except Missing as exc:
            not_installed(str(exc))
        try:
            yield pooler.url
        finally:
            pooler.stop()

    @contextmanager
    def reader(self) -> Iterator[str]:
        """A copy on a server of its own, which takes no writes: its URL."""
        other: Any = server(Postgres, "faults' reader")
        name = self.url.rpartition("/")[2]
        url = other.create_database(name)
        try:
            other.dump(self.url, url)
            other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            yield url
        except Missing as exc:
            not_installed(str(exc))
        finally:
            other.drop_database(name)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """The server takes no writes from now on."""
        server: Any = self.server
        try:
            server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            server.execute("SELECT pg_reload_conf()")
            yield
        finally:
            server.execute("ALTER SYSTEM RESET default_transaction_read_only")
            server.execute("SELECT pg_reload_conf()")

    def listeners(self) -> list[int]:
        """The server's processes that serve who listens, and looks over the same connection."""
        return self._find("(query LIKE 'LISTEN %' OR query ~ '^\\s*SELECT \\(\\s*SELECT own FROM unnest')")

    def end(self, pids: list[int]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [pids])

    def _find(self, where: str) -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                f"AND backend_type = 'client backend' AND {where}"
            )
            return [pid for (pid,) in cursor.fetchall()]

    @contextmanager
    def busy(self, url: str, clients: int) -> Iterator[None]:
        """Other clients with one short transaction after the other; nobody may end them."""
        import psycopg

        ends, failures = threading.Event(), []

        def run() -> None:
            try:
                with psycopg.connect(url, prepare_threshold=None) as client:
                    while not ends.is_set():
                        with client.transaction():
                            client.execute("SELECT pg_sleep(0.1)")
            except psycopg.Error as exc:
                failures.append(exc)

        threads = [threading.Thread(target=run, name=f"client {number}", daemon=True) for number in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ends.set()
            for thread in threads:
                thread.join()
        assert not failures, f"another client met {failures[0]!r}"

    @contextmanager
    def idle_transaction(self) -> Iterator[None]:
        """Another session has begun, written something, looked at something, and does nothing more."""
        import psycopg

        with psycopg.connect(self.url) as session:
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("INSERT INTO tests_effect (key, pid, note) VALUES ('idle', 0, '')")
            session.execute("SELECT count(*) FROM jobs_job")
            yield
            session.rollback()

    @contextmanager
    def holding(self, keys: list[Any]) -> Iterator[None]:
        """Another session has locked the rows of these jobs, and does nothing more."""
        import psycopg

        with psycopg.connect(self.url) as session:
            session.execute("SELECT 1 FROM jobs_job WHERE id = ANY(%s) FOR UPDATE", [keys])
            yield
            session.rollback()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Another process writes into the SQLite file, and does not come to its end."""
        with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=60, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            yield
            writer.execute("ROLLBACK")

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
        own: Any = self._server
        name = self.url.rpartition("/")[2]
        if how == "files":
            own.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            own.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            wait_for(lambda: _succeeds(own.create_database, f"{name}_copy", name), 10, "nobody is connected")
            own.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            connection.close()
        else:
            own.dump(self.url, own.create_database(f"{name}_copy"))
        try:
            with use(f"{self.url}_copy"):
                yield
        finally:
            own.drop_database(f"{name}_copy")

    def mend(self) -> None:
        if self._server is not None:
            self._server.resume()
            if not self._server.is_running:
                self._server.start()


class MariaDatabase(Database):
    def end(self, pids: list[int]) -> None:
        with connection.cursor() as cursor:
            for pid in pids:
                # Race: it ends by itself at this moment.
                with suppress(OperationalError):
                    cursor.execute(f"KILL {pid}")

    def _find(self, where: str) -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist "
                f"WHERE db = DATABASE() AND id <> CONNECTION_ID() AND {where}"
            )
            return [pid for (pid,) in cursor.fetchall()]


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


class ServerTemplate:
    """A migrated database on a server, of which every scenario gets a copy."""

    def __init__(self, server: Postgres | MariaDB, kind: type[Database] = Database) -> None:
        self.server, self._kind = server, kind
        with use(server.create_database("template")):
            call_command("migrate", run_syncdb=True, verbosity=0)
        self._copies = 0

    @contextmanager
    def copy(self, directory: Path) -> Iterator[Database]:
        self._copies += 1
        name = f"scenario{self._copies}"
        database = self._kind(self.server.create_database(name, template="template"), self.server)
        try:
            with use(database.url):
                yield database
        finally:
            database.mend()
            self.server.drop_database(name)

    @contextmanager
    def another(self, directory: Path) -> Iterator[str]:
        """The URL of a second copy, for another service."""
        url = self.server.create_database(f"another{self._copies}", template="template")
        try:
            yield url
        finally:
            self.server.drop_database(f"another{self._copies}")


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
    def another(self, directory: Path) -> Iterator[str]:
        """The URL of a second copy, for another service."""
        yield f"sqlite:///{shutil.copy(self.file, directory / 'another.sqlite3')}"


@contextmanager
def use(url: str, **more: Any) -> Iterator[None]:
    """Point this process, and the processes that it starts, at the database.

    Parameters:
        more: what this process's settings say beside the URL.
    """
    before = connections.settings["default"]
    config: dict[str, Any] = {**dj_database_url.parse(url, conn_max_age=60), **more}
    if url.startswith("sqlite"):
        config["OPTIONS"] = dict(SQLITE_OPTIONS)
    _replace(connections.configure_settings({"default": config})["default"])
    try:
        yield
    finally:
        _replace(before)


def _replace(config: dict[str, Any]) -> None:
    connections["default"].close()
    if connections["default"].settings_dict["OPTIONS"].get("pool"):
        # Django keeps it by the alias.
        connections["default"].close_pool()
    del connections["default"]
    connections.settings["default"] = config
    # Another kind of database, perhaps.
    store.of.cache_clear()
