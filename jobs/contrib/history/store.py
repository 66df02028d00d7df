"""The partitions of ``jobs_job`` on PostgreSQL.

``jobs_job_live`` has what has not ended, and ``jobs_job_failed`` what failed. What succeeded or was cancelled is in
``jobs_job_done``, by its id: an id contains the day of its call, so a look-up by id reads three tables, however many
days there are. ``jobs_job_rest`` has the other rows: ids that other programs made, and days without a partition. A
statement that names live states (``state = 'ready'``) is planned for ``jobs_job_live`` alone.

The table of an earlier release becomes ``jobs_job_live`` as it is. If the history is long, it also keeps what ends
within :data:`SOON` of the upgrade, and prune deletes that row by row.

An UPDATE that ends a job moves its row. A statement waiting for it gets SQLSTATE 40001 (``databases.again_if_moved``).
The tables have no common index: a migration that adds a unique constraint to jobs has to name the partition.
"""

from __future__ import annotations

import datetime
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, ProgrammingError, connections, transaction

from jobs.models import LIVE as LIVE_STATES
from jobs.models import State
from jobs.models.fields import first_id
from jobs.store import databases, of
from jobs.store.postgresql import PostgreSQL

LIVE, ENDED, FAILED, DONE, REST = (f"jobs_job_{name}" for name in ("live", "ended", "failed", "done", "rest"))
#: The states whose rows go to the partition of a day.
BY_DAY = (State.SUCCEEDED, State.CANCELLED)

#: At most this many rows are moved while a table is locked.
MOST = 10_000

#: If the table is longer, only jobs that end later than this from now go to another partition. Meanwhile the server
#: reads the whole table, which blocks no writer.
SOON = datetime.timedelta(days=1)

#: How long a statement waits for a lock (other sessions queue behind it), and how often it tries.
PATIENCE, LOCK_TRIES = "200ms", 60

#: Seconds for which a process remembers that the table is divided, and seconds for which that it is not.
LONG, SHORT = 3600.0, 60.0

#: PostgreSQL's codes: the table exists already (another worker was faster), and the role does not own the table.
REFUSED = ("42P07", "42501")

_DAY = re.compile(r"jobs_job_(\d{8})")

_IS_ABSENT = "SELECT 1 WHERE to_regclass('jobs_job') IS NULL"
#: Finds foreign keys, triggers, views, policies and publications of the project: they would belong to
#: ``jobs_job_live`` alone afterwards.
_IS_TIED = """
SELECT 1 FROM pg_constraint WHERE confrelid = 'jobs_job'::regclass
UNION ALL SELECT 1 FROM pg_trigger WHERE tgrelid = 'jobs_job'::regclass AND NOT tgisinternal
UNION ALL SELECT 1 FROM pg_depend JOIN pg_rewrite ON pg_rewrite.oid = objid
WHERE refobjid = 'jobs_job'::regclass AND classid = 'pg_rewrite'::regclass
UNION ALL SELECT 1 FROM pg_policy WHERE polrelid = 'jobs_job'::regclass
UNION ALL SELECT 1 FROM pg_publication_rel WHERE prrelid = 'jobs_job'::regclass
"""
_IS_MANY = "SELECT 1 FROM jobs_job OFFSET %s LIMIT 1"
#: The lock of the process that divides the table.
_TRY = "SELECT pg_try_advisory_xact_lock(7215, 69)"
_INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'jobs_job' AND schemaname = current_schema()"
_GRANTS = """
SELECT format('GRANT %%s ON jobs_job TO %%s', privilege_type,
    CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass('jobs_job')
"""
_DAYS = f"""
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = to_regclass('{DONE}') ORDER BY relname
"""
#: A role that may make days owns the table, or is a member of the owner, and may create tables in its schema.
_LACKS_RIGHT = f"""
SELECT current_user, pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('{DONE}')
AND NOT (pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE'))
"""
#: The constraint that proves that no row ends later: so the server need not read the rows while the table is locked.
_EARLIER, _BEFORE = "jobs_job_earlier", "finished_at IS NULL OR finished_at < '{}'"
_WITH_BOUND = f"SELECT conrelid::regclass::text FROM pg_constraint WHERE conname = '{_EARLIER}' AND coninhcount = 0"
_WITHIN = "id >= %(begin)s AND id < %(end)s"
_LIKE = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
#: The storage parameters of the queue's table: LIKE copies none, and autovacuum would come later in ended rows.
_STORAGE = """
SELECT ' WITH (' || array_to_string(reloptions, ', ') || ')' FROM pg_class
WHERE oid = to_regclass(%s) AND reloptions IS NOT NULL
"""


class Divided(PostgreSQL):
    """PostgreSQL, whose table of jobs may have partitions."""

    #: Whether it has partitions, and until when that is not asked again, on the monotonic clock.
    divided: tuple[bool, float] = (False, 0.0)

    @property
    def is_divided(self) -> bool:
        found, until = self.divided
        if time.monotonic() > until:
            found = len(self.parts("jobs_job")) > 1
            # No code makes it one table again.
            self.divided = found, time.monotonic() + (LONG if found else SHORT)
        return found

    def parts(self, table: str) -> list[str]:
        partitions = self.ask("SELECT relid::regclass::text FROM pg_partition_tree(to_regclass(%s))", table)
        return [name for (name,) in partitions] or [table]

    def withdraw(self, key: uuid.UUID) -> bool:
        if not self.is_divided:
            return False
        # Race: the other job may end while the INSERT waits for its row. So this is a separate statement.
        ended = "EXISTS (SELECT 1 FROM jobs_job WHERE id = %s AND finished_at IS NOT NULL)"
        sql = f"DELETE FROM jobs_job WHERE id = %s AND state IN ('scheduled', 'ready') AND {ended} RETURNING 1"
        return bool(self.ask(sql, key, key))


def divide(using: str) -> bool:
    """Divide an ordinary table; False: it is divided, project objects depend on it, or another process divides it.

    Other sessions wait for it only a little longer than its own wait for a lock. ``OperationalError``: it got no lock.
    """
    at = of(using)
    if not isinstance(at, Divided) or databases.ask(using, _IS_ABSENT):
        return False
    if at.is_divided or databases.ask(using, _IS_TIED):
        return False
    # A constraint that an earlier try left would make this one fail.
    mend(using)
    if not databases.ask(using, _IS_MANY, MOST):
        return _divide(using, None)
    with _alone(using) as is_alone:
        if not is_alone:
            return False
        since = databases.clock(using) + SOON
        try:
            earlier = f"CHECK ({_BEFORE.format(since)}) NOT VALID"
            _patiently(using, f"ALTER TABLE jobs_job ADD CONSTRAINT {_EARLIER} {earlier}")
            with connections[using].cursor() as cursor:
                # This reads the whole table, and blocks no other session.
                cursor.execute(f"ALTER TABLE jobs_job VALIDATE CONSTRAINT {_EARLIER}")
            return _divide(using, since)
        finally:
            _forget_bound(using)


def mend(using: str) -> None:
    """Drop the constraint that :func:`divide` leaves if its process is killed: after its moment no job could end."""
    if isinstance(of(using), PostgreSQL) and databases.ask(using, _WITH_BOUND):
        with _alone(using) as is_alone:
            if is_alone:
                _forget_bound(using)


def _forget_bound(using: str) -> None:
    if found := databases.ask(using, _WITH_BOUND):
        _patiently(using, *(f"ALTER TABLE {table} DROP CONSTRAINT {_EARLIER}" for (table,) in found))


@contextmanager
def _alone(using: str) -> Iterator[bool]:
    """Whether no other process divides the table. The lock belongs to a transaction: behind a pooler each statement
    may run in another session."""
    with databases.apart(using) as own:
        own.set_autocommit(False)
        with own.cursor() as cursor:
            # This session is idle while a large table is validated.
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute(_TRY)
            yield cursor.fetchone()[0]


def _patiently(using: str, *statements: str) -> None:
    """Execute statements that need a lock, so that no other session waits behind them for long."""
    for left in reversed(range(LOCK_TRIES)):
        try:
            with transaction.atomic(using=using), connections[using].cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
                for statement in statements:
                    cursor.execute(statement)
            return
        except OperationalError as exc:
            if not left or not databases.gave_up(exc):
                raise
            time.sleep(1.0)


def _divide(using: str, since: datetime.datetime | None) -> bool:
    """
    Parameters:
        since: jobs that end later than this go to their partition; None: all jobs.
    """
    storage = _storage(using, "jobs_job")
    statements = [
        "LOCK TABLE jobs_job IN ACCESS EXCLUSIVE MODE",
        f"ALTER TABLE jobs_job RENAME TO {LIVE}",
        f"CREATE TABLE jobs_job (LIKE {LIVE} {_LIKE}) PARTITION BY RANGE (finished_at)",
        f"CREATE TABLE {ENDED} (LIKE {LIVE} {_LIKE}) PARTITION BY LIST (state)",
        f"CREATE TABLE {FAILED} (LIKE {LIVE} {_LIKE}){storage}",
        f"CREATE TABLE {DONE} (LIKE {LIVE} {_LIKE}) PARTITION BY RANGE (id)",
        *(grant for (grant,) in databases.ask(using, _GRANTS)),
    ]
    for name, definition in databases.ask(using, _INDEXES):
        # The indexes of ended jobs stay on the live table, too, where they are empty. Without them, a plan that reads
        # all partitions in the order of an index would sort the waiting jobs.
        if not any(f"'{state.value}'" in definition for state in LIVE_STATES):
            for table in (FAILED, DONE):
                new = name.replace("jobs_job", table)
                if name == "jobs_job_pkey":
                    # A unique index is not enough: logical replication identifies rows by the primary key.
                    statements.append(f"ALTER TABLE {table} ADD CONSTRAINT {new} PRIMARY KEY (id)")
                    continue
                statements.append(re.sub(r"INDEX \S+ ON (ONLY )?\S+", f"INDEX {new} ON {table}", definition))
    statements.append(f"CREATE TABLE {REST} (LIKE {DONE} {_LIKE} INCLUDING INDEXES){storage}")
    if since is None:
        for table, states in ((FAILED, (State.FAILED,)), (REST, BY_DAY)):
            statements.append(f"INSERT INTO {table} SELECT * FROM {LIVE} WHERE state IN ({_values(states)})")
        statements.append(f"DELETE FROM {LIVE} WHERE finished_at IS NOT NULL")
    else:
        new = ("jobs_job", ENDED, FAILED, DONE, REST)
        statements += [f"ALTER TABLE {name} DROP CONSTRAINT {_EARLIER}" for name in new]
    bound = "MINVALUE" if since is None else f"'{since}'"
    statements += [
        f"ALTER TABLE {DONE} ATTACH PARTITION {REST} DEFAULT",
        f"ALTER TABLE {ENDED} ATTACH PARTITION {FAILED} FOR VALUES IN ('{State.FAILED.value}')",
        f"ALTER TABLE {ENDED} ATTACH PARTITION {DONE} FOR VALUES IN ({_values(BY_DAY)})",
        f"ALTER TABLE jobs_job ATTACH PARTITION {ENDED} FOR VALUES FROM ({bound}) TO (MAXVALUE)",
        f"ALTER TABLE jobs_job ATTACH PARTITION {LIVE} DEFAULT",
    ]
    if since is not None:
        statements.append(f"ALTER TABLE {LIVE} DROP CONSTRAINT {_EARLIER}")
    _patiently(using, *statements)
    at: Any = of(using)
    at.divided = (True, 0.0)
    return True


def _storage(using: str, table: str) -> str:
    """The storage parameters of a table, as CREATE TABLE takes them."""
    return next((found for (found,) in databases.ask(using, _STORAGE, table)), "")


def _values(states: Sequence[State]) -> str:
    return ", ".join(f"'{state.value}'" for state in states)


def days(using: str) -> dict[datetime.date, str]:
    """The days that have a partition, in their order, and its name."""
    found = (_DAY.fullmatch(name) for (name,) in databases.ask(using, _DAYS))
    return {datetime.datetime.strptime(each[1], "%Y%m%d").date(): each[0] for each in found if each}


def within(jobs: Any, name: str) -> Any:
    """The jobs, out of these, that are in this partition."""
    return jobs.extra(where=["tableoid = %s::regclass"], params=[name])


def bounds(day: datetime.date) -> tuple[datetime.datetime, datetime.datetime]:
    begin = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)
    return begin, begin + datetime.timedelta(days=1)


def missing(using: str, ahead: int, now: datetime.datetime) -> Iterator[datetime.date]:
    """The days without a partition: of today, by the database's clock, and the days ahead."""
    there, today = days(using), now.astimezone(datetime.UTC).date()
    every = (today + datetime.timedelta(days=number) for number in range(ahead + 1))
    return (day for day in every if day not in there)


def lacks_right(using: str) -> tuple[str, str] | None:
    """This process's role and the owner's role, if this process may not make days; else None."""
    return next(iter(databases.ask(using, _LACKS_RIGHT)), None)


def make_days(using: str, ahead: int, now: datetime.datetime) -> int:
    """Make the missing partitions; returns how many it made.

    Race: another worker makes the same partition. The database refuses one of the two, which is harmless.
    """
    return sum(make_day(using, day) for day in list(missing(using, ahead, now)))


def make_day(using: str, day: datetime.date) -> bool:
    """Make a day's partition and move its rows there; False: it exists, is in use, or there are too many rows."""
    name, (begin, end) = f"jobs_job_{day:%Y%m%d}", bounds(day)
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
            cursor.execute(f"CREATE TABLE {name} (LIKE {DONE} {_LIKE} INCLUDING INDEXES){_storage(using, LIVE)}")
            # Attaching the partition would lock and read the rest, too; it has few rows.
            cursor.execute(f"LOCK TABLE {REST} IN ACCESS EXCLUSIVE MODE")
            values = {"begin": first_id(begin), "end": first_id(end)}
            cursor.execute(
                f"SELECT count(*) FROM (SELECT 1 FROM {REST} WHERE {_WITHIN} LIMIT {MOST + 1}) AS few", values
            )
            if cursor.fetchone()[0] > MOST:
                transaction.set_rollback(True, using=using)
                return False
            moved = f"WITH moved AS (DELETE FROM {REST} WHERE {_WITHIN} RETURNING *)"
            cursor.execute(f"{moved} INSERT INTO {name} SELECT * FROM moved", values)
            limits = f"FROM ('{values['begin']}') TO ('{values['end']}')"
            cursor.execute(f"ALTER TABLE {DONE} ATTACH PARTITION {name} FOR VALUES {limits}")
    except (OperationalError, ProgrammingError) as exc:
        if not is_refused(exc):
            raise
        return False
    return True


def is_refused(exc: BaseException) -> bool:
    """Whether it cannot be done now, or by this role."""
    return databases.gave_up(exc) or databases.sqlstate(exc) in REFUSED


def lock_day(using: str, name: str) -> None:
    """Lock a day against writers until the transaction ends. ``OperationalError``: another session is writing there."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
        cursor.execute(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE")


def drop_day(using: str, name: str, kept: Sequence[Any]) -> None:
    """Drop a locked day; the jobs that are ``kept`` go to the rest. No job can end until this transaction commits.

    ``OperationalError``: another session reads it.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {DONE} DETACH PARTITION {name}")
        if kept:
            cursor.execute(f"INSERT INTO jobs_job SELECT * FROM {name} WHERE id = ANY(%s)", [list(kept)])
        cursor.execute(f"DROP TABLE {name}")
