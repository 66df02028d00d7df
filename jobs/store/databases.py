"""Which databases jobs live in, the side connection, and how reused connections are kept safe."""

import datetime
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any, TypeVar
from weakref import WeakSet

from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, QuerySet
from django.db.utils import load_backend

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.models import Job, tables

T = TypeVar("T")
M = TypeVar("M", bound=Model)
R = TypeVar("R", bound=QuerySet[Any, Any])

#: Seconds after which the same complaint about a database is logged again, and when each was.
REPEAT = 30.0
_complaints: dict[tuple[str, str], float] = {}

#: When this code was loaded, on the machine's monotonic clock: in a worker, before it forked.
STARTED = time.monotonic()

#: Two processes of one worker compute when it began, by a database's clock; the results may differ by so much.
SAME = datetime.timedelta(seconds=1)

#: psycopg.pq.TransactionStatus
IDLE, ACTIVE, INTRANS, INERROR = range(4)

#: PostgreSQL's codes of a server that takes no writes (after a failover), and of a session that it has ended. To Django
#: both are internal errors, and the connection to such a server works: a process that keeps it stays with a reader.
REFUSES = ("25006", "25P03")

#: PostgreSQL's codes: the wait for a lock took longer than lock_timeout; one of two transactions had to end.
LOCK_NOT_AVAILABLE, SERIALIZATION_FAILURE, DEADLOCK = "55P03", "40001", "40P01"

#: MySQL's numbers for the same: lock wait timeout, NOWAIT; deadlock.
MYSQL_BUSY, MYSQL_DEADLOCK = (1205, 3572), 1213
BUSY = (LOCK_NOT_AVAILABLE, *MYSQL_BUSY)

#: A disk without room: PostgreSQL's code, SQLite's text, MySQL's numbers.
DISK_FULL = ("53100", "database or disk is full", 1021, 1114)

#: PostgreSQL's code. With it our own statements say that they found no row.
DIVISION_BY_ZERO = "22012"

#: SQL for "now" in seconds since 1970, by the database's clock.
EPOCH_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())",
    "mysql": "UNIX_TIMESTAMP(NOW(6))",
}

#: SQLite's clock, in milliseconds, as Django writes it.
NOW_SQLITE = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"


def job_alias(using: str | None = None) -> str:
    """The database a new job is inserted into; ``ValueError`` if that is not one of ``JOBS["DATABASES"]``."""
    alias = using or router.db_for_write(Job)
    if alias not in conf().DATABASES:
        cure = f"add it to JOBS['DATABASES'] ({list(conf().DATABASES)}) and migrate it, or pass using="
        raise ValueError(f"jobs do not live in the database {alias!r}: {cure}")
    return alias


def home() -> str:
    """The alias where nodes, beats and messages live."""
    return conf().DATABASES[0]


def is_lost(exc: BaseException, alias: str, before: Any = None) -> bool:
    """Whether the connection died, and its transaction with it. Django opens another one at the transaction's end.

    Parameters:
        before: the driver's connection before the transaction, if that has ended meanwhile.
    """
    is_refused = sqlstate(exc) in REFUSES
    if not is_refused and not isinstance(exc, OperationalError | InterfaceError):
        return False
    connection = connections[alias]
    if connection.connection is None or before not in (None, connection.connection):
        return True
    if is_refused:
        return not _takes_writes(alias)
    if code := sqlstate(exc):
        # In a failed transaction ``is_usable()`` would fail, although the connection lives. With such a code it was
        # another connection of the body that died, if this one answers.
        return code.startswith(("08", "57P0")) and not connection.is_usable()
    return not is_interrupted(alias) and not connection.is_usable()


def _takes_writes(alias: str) -> bool:
    """Whether the connection works, and its server takes writes: then another connection of the body was refused."""
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("SHOW transaction_read_only")
            return bool(cursor.fetchone()[0] == "off")
    except Error:
        return False


def sqlstate(exc: BaseException) -> str:
    """PostgreSQL's code of the error; empty if the error is not the server's."""
    cause = exc.__cause__
    return str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")


def code_of(exc: BaseException) -> str | int | None:
    """The server's code of the error: PostgreSQL's SQLSTATE, or MySQL's number; None if it is not the server's.

    SQLite has a text only.
    """
    code = sqlstate(exc) or next(iter(exc.args), None)
    return code if isinstance(code, int | str) else None


def gave_up(exc: BaseException) -> bool:
    """Whether the database ended a wait for another transaction: it took too long, or was a deadlock."""
    return code_of(exc) in (*BUSY, DEADLOCK, MYSQL_DEADLOCK)


def is_busy(exc: BaseException) -> bool:
    """Whether another transaction has locked a row, and this statement was not to wait for it (any longer)."""
    return code_of(exc) in BUSY


def is_conflict(exc: BaseException) -> bool:
    """Whether the database ended this transaction in favour of another one: a second try may succeed."""
    conflicts = (SERIALIZATION_FAILURE, DEADLOCK, MYSQL_DEADLOCK)
    return isinstance(exc, OperationalError) and code_of(exc) in conflicts


def is_refusal(exc: BaseException) -> bool:
    """Whether the database refuses the values themselves: the same statement would be refused again."""
    # A value that is too large for an index, say, is an OperationalError on PostgreSQL.
    return isinstance(exc, DataError | IntegrityError) or sqlstate(exc)[:2] in ("22", "23", "54")


def is_full(exc: BaseException) -> bool:
    """Whether the disk was full: that passes when a person makes room."""
    return isinstance(exc, OperationalError) and code_of(exc) in DISK_FULL


def free(rows: QuerySet[M]) -> QuerySet[M]:
    """Lock the rows that no other transaction has locked, until this one ends. (SQLite has one writer.)"""
    can_skip = connections[rows.db].features.has_select_for_update_skip_locked
    return rows.select_for_update(skip_locked=True) if can_skip else rows


def ask(using: str, sql: str, *params: Any) -> list[Any]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def epoch(using: str) -> float:
    """The time by the database's clock, in seconds since 1970."""
    return float(ask(using, f"SELECT {EPOCH_NOW[connections[using].vendor]}")[0][0])


def clock(using: str) -> datetime.datetime:
    """The time by the database's clock."""
    return datetime.datetime.fromtimestamp(epoch(using), datetime.UTC)


def began(now: datetime.datetime, since: float = STARTED) -> datetime.datetime:
    """When this worker began, by the database's clock, which says ``now``."""
    return now - datetime.timedelta(seconds=time.monotonic() - since)


def apart(alias: str) -> closing[BaseDatabaseWrapper]:
    """A separate connection for one block, in autocommit mode."""
    return closing(_new_connection(alias))


def everywhere(part: Callable[[str], int | None], aliases: Iterable[str] | None = None) -> int:
    """Call ``part`` for each job database, and add up its results. It goes on if a database is away."""
    done = 0
    for alias in conf().DATABASES if aliases is None else aliases:
        try:
            done += part(alias) or 0
        except Error as exc:
            if is_conflict(exc):
                # Race: another process ended the same jobs. The next round looks for what is left.
                logger.info("%r was left for the next round: %s", alias, exc, extra={"action": "database_conflict"})
            else:
                note_away(exc, alias)
    return done


def each(rows: R) -> Iterator[R]:
    """The same rows of each job database."""
    return (rows.using(alias) for alias in conf().DATABASES)


def first(rows: QuerySet[M]) -> M | None:
    """The first of the rows, from any of the job databases."""
    return next(filter(None, (part.first() for part in each(rows))), None)


def patiently(alias: str, action: Callable[[], T]) -> T:
    """Call ``action``; if the connection turns out to be dead, outside of a transaction, try again over a new one."""
    connection = connections[alias]
    raw = connection.connection
    try:
        return action()
    except Error as exc:
        if connection.in_atomic_block or not connection.autocommit or not is_lost(exc, alias, raw):
            raise
        drop(alias)
        return action()


def again_if_moved(using: str, action: Callable[[], T], is_one: bool = False) -> T:
    """Call ``action`` in a savepoint, and again if PostgreSQL says that a row which it was to lock has moved.

    Race: a job ends, or is run again, which moves its row to another partition. The next try sees its new state.
    A statement with SKIP LOCKED gets the same error, if the row moved since it began.

    Parameters:
        is_one: ``action`` is one statement, which needs no savepoint outside of a transaction.
    """
    is_alone = is_one and connections[using].get_autocommit()
    for left in (4, 3, 2, 1, 0):
        try:
            with nullcontext() if is_alone else transaction.atomic(using=using):
                return action()
        except OperationalError as exc:
            if sqlstate(exc) != SERIALIZATION_FAILURE or not left:
                raise
    raise AssertionError


def note_away(exc: Error, alias: str) -> None:
    """Drop the connection, and log the error, but the same error only once in :data:`REPEAT` seconds."""
    drop(alias)
    text, now = describe(exc), time.monotonic()
    if now - _complaints.get((alias, text), -REPEAT) < REPEAT:
        return
    if len(_complaints) > 100:
        _complaints.clear()
    _complaints[alias, text] = now
    logger.error("the database %s: %s", alias, text, extra={"action": "database_away", "database": alias})


def _database_of(exc: Error) -> str:
    """The database that raised an error: the frame in which Django translates the driver's error knows it."""
    frames = (frame for frame, _ in traceback.walk_tb(exc.__traceback__))
    at = [getattr(frame.f_locals.get("self"), "wrapper", None) for frame in frames]
    return next((alias for alias in conf().DATABASES if connections[alias] in at), home())


def note_failure(exc: Exception, who: str, about: dict[str, Any]) -> None:
    """Log an error that must not stop a loop. After an error of the database all its connections are dropped."""
    if isinstance(exc, Error):
        note_away(exc, _database_of(exc))
        for alias in conf().DATABASES:
            drop(alias)
    else:
        logger.error("%s goes on after an error", who, exc_info=exc, extra=about)


def describe(exc: Error) -> str:
    """The text of a database error, with the cure where one is known."""
    text = str(exc).strip()
    is_cured = isinstance(exc, ProgrammingError) or "no such table" in text or "no such column" in text
    return f"{text} (not migrated? run manage.py migrate)" if is_cured else text


def in_test(alias: str) -> bool:
    """Whether Django's ``TestCase`` holds a transaction around the whole test, which must not be ended."""
    blocks = connections[alias].atomic_blocks
    return bool(blocks) and bool(getattr(blocks[0], "_from_testcase", False))


def in_transaction(alias: str) -> bool:
    """Whether a transaction is open that is not just the one of a ``TestCase``."""
    connection = connections[alias]
    blocks = connection.atomic_blocks
    return connection.in_atomic_block and not (blocks and getattr(blocks[-1], "_from_testcase", False))


def drop(alias: str) -> None:
    """Close the connection whatever state it is in; the next query opens a new one.

    After a time limit in mid-query Django takes it for usable; after a failed COMMIT it is in no known state.
    """
    if in_test(alias):
        return
    connection = connections[alias]
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks = [], []
    cancel_query(alias)
    with suppress(Error):
        connection.close()


def leave_pools() -> None:
    """Use no connection pools of Django, in a process whose threads need few connections and must not wait for one."""
    for alias in conf().DATABASES:
        settings = connections.settings[alias]
        settings["OPTIONS"] = {key: value for key, value in settings["OPTIONS"].items() if key != "pool"}


def cancel_query(alias: str) -> None:
    """End a query that a time limit left behind: it would go on in the server, and keep its transaction's locks."""
    connection = connections[alias]
    if is_interrupted(alias):
        try:
            connection.connection.cancel_safe(timeout=2.0)
        except Exception:
            logger.debug("a query that was left behind goes on", exc_info=True, extra={"action": "query_kept"})


def roll_back(alias: str) -> None:
    """Roll back after a body that failed, before Django does the same (with ``atomic=False`` Django does not).

    Race: a signal during Django's rollback makes it switch autocommit on, which commits on SQLite and MySQL.
    After a signal here, Django still rolls back, or the connection's end does.
    """
    if in_test(alias):
        # Django rolls back to the savepoint of the body.
        return
    cancel_query(alias)
    try:
        if is_interrupted(alias):
            # A rollback would be refused, or wait for itself: psycopg's ``stream()`` keeps a lock.
            connections[alias].close()
        else:
            connections[alias]._rollback()  # type: ignore[attr-defined]
    except Error:
        logger.debug("a rollback over a broken connection", exc_info=True, extra={"action": "rollback_failed"})


def tidy(alias: str) -> None:
    """After a run: leave this thread a job connection that is safe to reuse, and close all others.

    Costs no statement: psycopg knows its transaction status by itself.
    """
    for connection in connections.all(initialized_only=True):
        try:
            if connection.alias != alias:
                connection.close_if_unusable_or_obsolete()
                # A time limit left a query behind: the next body that uses the connection would fail.
                if status(connection) == ACTIVE:
                    drop(connection.alias)
            elif connection.connection is not None and (
                connection.in_atomic_block
                or connection.errors_occurred
                or _has_transaction(connection)
                or status(connection) not in (None, IDLE)
            ):
                connection.errors_occurred = False
                drop(alias)
        except Error:
            drop(connection.alias)


def has_transaction(alias: str) -> bool:
    """Whether a transaction is open, or may begin at any statement; Django need not know of it."""
    return in_transaction(alias) if in_test(alias) else _has_transaction(connections[alias])


def _has_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Race: a signal that arrives while SQLite's BEGIN waits is handled only when BEGIN has the lock."""
    with connection.wrap_database_errors:
        return (
            not connection.get_autocommit()
            or status(connection) in (INTRANS, INERROR)
            or getattr(connection.connection, "in_transaction", False)
        )


def is_interrupted(alias: str) -> bool:
    """Whether a time limit left a query behind (PostgreSQL): the connection works, but takes no other query."""
    return status(connections[alias]) == ACTIVE


def is_idle(alias: str) -> bool:
    """Whether the connection is free for a statement, as far as the driver knows without asking the server."""
    return status(connections[alias]) in (None, IDLE)


def status(connection: BaseDatabaseWrapper) -> int | None:
    """The transaction status that PostgreSQL's driver knows without asking the server; None for other databases."""
    raw: Any = connection.connection
    # psycopg2 does not expose libpq, but has the same numbers.
    return getattr(getattr(raw, "pgconn", None) or getattr(raw, "info", None), "transaction_status", None)


def has_libpq(connection: BaseDatabaseWrapper) -> bool:
    """Whether PostgreSQL's driver gives access to its libpq: psycopg 3 does, psycopg2 does not."""
    return hasattr(connection.connection, "pgconn")


class SideDatabase:
    """A separate connection for heartbeats and messages.

    On SQLite it opens another file beside the main one (same name, ``.broker`` appended): a body holds the main file's
    write lock as long as it runs, and a heartbeat must not wait for a body. Elsewhere it is a second connection to the
    same database: no message and no beat becomes part of the caller's transaction.

    Threads may share it. It is closed before every fork: two processes must not speak on one socket, or SQLite file.
    In a ``TestCase`` it is the test's own connection, so that all goes with the test.

    Parameters:
        is_apart: False for a thread that has no transaction open: where there is no second file, its own connection is
            good enough.
    """

    def __init__(self, is_apart: bool = True) -> None:
        self._is_apart = is_apart
        self._lock = threading.RLock()
        self._connection: BaseDatabaseWrapper | None = None
        _open_ones.add(self)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A cursor in autocommit mode; other threads wait for the block's end. A connection that broke is closed."""
        if in_test(home()) or not (self._is_apart or self.vendor == "sqlite"):
            with connections[home()].cursor() as cursor:
                yield cursor
            return
        with self._lock:
            if self._connection is None:
                connection = _new_connection(home())
                try:
                    connection.ensure_connection()
                except Error:
                    raise
                except Exception as exc:
                    # A backend that fetches a password may raise anything: it is away like a server.
                    raise OperationalError(f"cannot connect: {exc!r}") from exc
                if self.vendor == "sqlite":
                    _create_tables(connection)
                self._connection = connection
            connection = self._connection
            try:
                with connection.cursor() as cursor:
                    yield cursor
            except Error as exc:
                # Without a connection Django raises AttributeError on MySQL.
                if sqlstate(exc) in REFUSES or connection.connection is None or not connection.is_usable():
                    self.close()
                raise

    def execute(self, sql: str, *params: Any) -> Any:
        """Execute one statement, in which ``{now}`` is :attr:`now`. Returns the rows, or how many it changed."""
        with self.cursor() as cursor:
            cursor.execute(sql.format(now=self.now), params)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def seconds(self) -> float:
        """The time by the database's clock, in seconds since 1970."""
        return float(self.execute("SELECT {now}")[0][0])

    @property
    def vendor(self) -> str:
        return connections[home()].vendor

    @property
    def now(self) -> str:
        """SQL for the database's clock, in seconds since 1970."""
        return EPOCH_NOW[self.vendor]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                with suppress(Error):
                    self._connection.close()
                self._connection = None


def side(is_apart: bool = True) -> closing[SideDatabase]:
    """A connection to beats and messages for one block."""
    return closing(SideDatabase(is_apart))


_open_ones: WeakSet[SideDatabase] = WeakSet()


def _new_connection(alias: str) -> BaseDatabaseWrapper:
    main = connections[alias]
    settings = {**main.settings_dict, "CONN_MAX_AGE": None, "ATOMIC_REQUESTS": False, "AUTOCOMMIT": True}
    if main.vendor == "sqlite":
        name = str(settings["NAME"])
        if ":memory:" in name or "mode=memory" in name:
            cure = "give it a file (NAME, and TEST['NAME'] for tests)"
            raise ImproperlyConfigured(f"the database {alias!r} is in memory, and no process can share it: {cure}")
        # Django passes a URI on: file:/srv/db.sqlite3?cache=private.
        path, mark, query = name.partition("?") if name.startswith("file:") else (name, "", "")
        settings["NAME"] = f"{path}.broker{mark}{query}"
        # Only its owner may read it, whatever the umask: it has messages and progress. SQLite gives -wal and -shm the
        # same mode.
        with suppress(OSError):
            os.close(os.open(path.removeprefix("file:").removeprefix("//") + ".broker", os.O_CREAT | os.O_EXCL, 0o600))
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        settings["OPTIONS"] = {"timeout": 5, "transaction_mode": "IMMEDIATE", "init_command": pragmas}
    else:
        settings["OPTIONS"] = {key: value for key, value in settings["OPTIONS"].items() if key != "pool"}
    connection: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, alias)
    connection.inc_thread_sharing()
    return connection


def _create_tables(connection: BaseDatabaseWrapper) -> None:
    models = {model._meta.db_table: model for model in tables() if getattr(model, "is_beside", False)}
    if models.keys() - connection.introspection.table_names():
        with connection.schema_editor() as editor:
            # Asked again inside the write lock: another process may have been faster.
            for name in models.keys() - connection.introspection.table_names():
                editor.create_model(models[name])


def close_all() -> None:
    for side in list(_open_ones):
        side._lock.acquire()
        side.close()


def release_all() -> None:
    for side in list(_open_ones):
        # Another thread may have created one during the fork: it was never locked here.
        with suppress(RuntimeError):
            side._lock.release()


def _renew_all() -> None:
    for side in list(_open_ones):
        side._lock = threading.RLock()


os.register_at_fork(before=close_all, after_in_parent=release_all, after_in_child=_renew_all)
