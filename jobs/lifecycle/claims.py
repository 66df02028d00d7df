"""The claim and the completion: the statements that every job costs.

The race of the claim is decided by SKIP LOCKED: of several processes that look at the same row, one gets it, and none
waits. The race of the completion is decided by lease and token: a run whose job was given to another finds no row.
"""

from __future__ import annotations

import datetime
import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db import DataError, connections, transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now

from jobs.conf.syncpoints import is_armed
from jobs.database import databases
from jobs.models import CLAIMABLE, Cancellation, Job, Node, Pause, State

#: How many a statement asks for: a few sizes, so that each is planned once.
SIZES = (1, 2, 5, 10, 20, 30, 50, 100, 200)
#: Seconds between two looks from the beginning of a queue, where a better row may have come.
LOOK = 1.0
#: A look that takes longer than this, in seconds, is repeated after so many times its own length.
SLOW_LOOK, RARELY = 0.02, 50

#: Seconds for which the server keeps its plans: one that it made for an empty table reads all of a full one.
PLANNED = 1.0

#: PostgreSQL's code.
DIVISION_BY_ZERO = "22012"

#: Where a job stands in its queue.
PLACE = attrgetter("rank", "run_at", "pk")
#: What a run needs of its row; what else somebody asks for is read then.
COLUMNS = (
    "id task args kwargs options queue priority rank state run_at expires_at made_at lease token node_id "
    "backend retries crashes node_losses snoozes started_at parent_id root marker_key unique_key "
    "unique_until unique_expires_at batch_id limit_key"
).split()

_CLAIM = """
UPDATE jobs_job
SET state = 'running', lease = lease + 1, token = %(token)s, node_id = %(node)s, backend = %(backend)s,
    started_at = statement_timestamp(), limit_place = NULL, queue_place = NULL
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unsynced
WHERE id = ANY (ARRAY(
    SELECT id FROM jobs_job
    WHERE state = 'ready' AND held IS NULL AND queue = {queue} {after} {without}
      AND (expires_at IS NULL OR expires_at > statement_timestamp())
      AND EXISTS (SELECT 1 FROM jobs_node WHERE id = %(node)s AND dead_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = {queue})
    ORDER BY rank, run_at, id
    LIMIT {limit}
    FOR UPDATE SKIP LOCKED
))
RETURNING {columns}
"""

#: Behind the row that this process claimed last. The rows before it are gone, but their index entries stay as long as
#: somebody keeps an old transaction open, and a claim would step over all of them.
#: The planner sees the place, and plans each claim anew. A plan that is kept may be that of a table which was empty.
_AFTER = "AND (rank, run_at, id) > (%(rank)s::smallint, %(run_at)s::timestamptz, %(id)s::uuid)"

#: Those whose limits another claim heeds (``lifecycle.limited_claims``).
_WITHOUT = "AND task <> ALL (%(without)s)"

#: The row of a run, by its key. The state is written so that the planner does not take the index of all that runs.
_OWNED = "state || '' = 'running'"

_RENEW = f"""
UPDATE jobs_job SET token = %(token)s, started_at = statement_timestamp()
WHERE id = %(id)s AND {_OWNED} AND lease = %(lease)s AND token = %(before)s
"""

#: Zero rows are an error (a division by zero), so that a COMMIT in the same message does not commit.
_SUCCEED = f"""
WITH done AS (
    UPDATE jobs_job
    SET state = 'succeeded', finished_at = statement_timestamp(), result = {{0}}, error = NULL,
        started_at = statement_timestamp() - {{1}} * interval '1 second'
    WHERE id = {{2}} AND {_OWNED} AND lease = {{3}} AND token = {{4}}
      AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {{2}})
    RETURNING 1
)
SELECT 1 / count(*) FROM done
"""

_SUCCEED_PREPARED = "(json, float8, uuid, int, bigint) AS" + _SUCCEED.format("$1", "$2", "$3", "$4", "$5")


def size_of(limit: float) -> int:
    """The largest of the sizes that is not above the limit."""
    return max((size for size in SIZES if size <= limit), default=1)


class Claimer:
    """Claims for one process, queue by queue, each from where the last claim ended."""

    def __init__(self) -> None:
        #: For each database and queue: the place of the row that was claimed last, and when to look from the start.
        self._after: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._look_at: dict[tuple[str, str], float] = {}

    def claim(
        self,
        using: str,
        queue: str,
        node: uuid.UUID,
        limit: int,
        token: int | None = None,
        without: Sequence[str] = (),
    ) -> list[Job]:
        """Move up to ``limit`` jobs of the queue to ``running``, with one fresh token and the next lease each.

        Jobs of the tasks ``without`` which it claims stay where they are.

        A node that was declared dead claims nothing. An expired row is not claimed, and no row of a paused queue.
        The answer is in the order of the queue; it is empty if others are about to have what there is.
        """
        size, token = size_of(limit), token or new_token()
        vendor = connections[using].vendor
        if vendor != "postgresql":
            claim = _claim_sqlite if vendor == "sqlite" else _claim_anywhere
            return claim(using, queue, node, size, token, without)
        place = (using, queue)
        after = self._after.pop(place, None)
        rows: list[Job] = []
        if after is not None and time.monotonic() < self._look_at.get(place, 0.0):
            rows = _claim(using, queue, node, size, token, without, after)
        if not rows:
            began = time.monotonic()
            rows = _claim(using, queue, node, size, token, without)
            took = time.monotonic() - began
            self._look_at[place] = time.monotonic() + (RARELY * took if took > SLOW_LOOK else LOOK)
        if rows:
            self._after[place] = PLACE(rows[-1])
        return rows


def _claim(
    using: str,
    queue: str,
    node: uuid.UUID,
    limit: int,
    token: int,
    without: Sequence[str],
    after: tuple[Any, ...] = (),
) -> list[Job]:
    session = session_of(using)
    values = {"node": node, "token": token, "backend": session.backend, "without": list(without)}
    if after:
        values |= dict(zip(("rank", "run_at", "id"), after, strict=True))
    rows = session.fetch(_claim_statement(queue, limit, bool(after), bool(without)), values)
    return jobs_of(rows, using)


def jobs_of(
    rows: Iterable[Sequence[Any]], using: str, decode: Callable[[dict[str, Any]], None] | None = None
) -> list[Job]:
    """What a claim returned, in the order of the queue."""
    jobs = []
    for row in rows:
        values = dict(zip(COLUMNS, row, strict=True))
        if decode is not None:
            decode(values)
        values["options"] = json.loads(values["options"]) if values["options"] else {}
        jobs.append(Job.of(values, using))
    return sorted(jobs, key=PLACE)


@lru_cache(maxsize=1000)
def _claim_statement(queue: str, limit: int, is_after: bool, is_without: bool) -> str:
    """The queue and the limit stand in it as they are: so the planner takes the index, whatever it knows."""
    after, without = _AFTER if is_after else "", _WITHOUT if is_without else ""
    return _CLAIM.format(queue=literal(queue), limit=limit, after=after, without=without, columns=", ".join(COLUMNS))


def literal(text: str) -> str:
    """The text as it stands in a statement whose values are given apart from it."""
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"


#: SQLite's clock, in milliseconds, as Django writes it.
NOW_SQLITE = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"

_READY_SQLITE = f"""
FROM jobs_job
WHERE state = 'ready' AND held IS NULL AND queue = %s AND (expires_at IS NULL OR expires_at > {NOW_SQLITE})
  AND EXISTS (SELECT 1 FROM jobs_node WHERE id = %s AND dead_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = %s) AND task NOT IN ({{without}})
"""

_CLAIM_SQLITE = f"""
UPDATE jobs_job
SET state = 'running', lease = lease + 1, token = %s, node_id = %s, backend = NULL, started_at = {NOW_SQLITE},
    limit_place = NULL, queue_place = NULL
WHERE id IN (SELECT id {_READY_SQLITE} ORDER BY rank, run_at, id LIMIT %s)
RETURNING {", ".join(COLUMNS)}
"""

_SUCCEED_SQLITE = f"""
UPDATE jobs_job SET state = 'succeeded', finished_at = {NOW_SQLITE}, result = %s, error = NULL
WHERE id = %s AND state = 'running' AND lease = %s AND token = %s
  AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = %s)
"""


def _claim_sqlite(using: str, queue: str, node: uuid.UUID, limit: int, token: int, without: Sequence[str]) -> list[Job]:
    names = ", ".join(["%s"] * len(without))
    with connections[using].cursor() as cursor:
        ready = (queue, node.hex, queue, *without)
        # Without the write lock: most looks find nothing.
        look = f"SELECT 1 {_READY_SQLITE} LIMIT 1".format(without=names)
        if cursor.execute(look, ready).fetchone() is None:
            return []
        sql = _CLAIM_SQLITE.format(without=names)
        rows = cursor.execute(sql, (token, node.hex, *ready, limit)).fetchall()
    return jobs_of(rows, using, _decode_sqlite)


def _decode_sqlite(values: dict[str, Any]) -> None:
    for name in ("id", "node_id", "parent_id", "root", "batch_id"):
        values[name] = values[name] and uuid.UUID(values[name])
    for name in ("args", "kwargs"):
        values[name] = json.loads(values[name])
    for name in ("run_at", "expires_at", "made_at", "started_at", "unique_expires_at"):
        if (moment := values[name]) is not None:
            moment = datetime.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
            values[name] = moment.replace(tzinfo=datetime.UTC)


def _claim_anywhere(
    using: str, queue: str, node: uuid.UUID, limit: int, token: int, without: Sequence[str]
) -> list[Job]:
    """As SQL that every database knows."""
    first = ready(using, queue, node).exclude(task__in=without)
    # Without the write lock: most looks find nothing.
    if not first.values_list("pk")[:1]:
        return []
    with transaction.atomic(using=using):
        ids = list(databases.free(first).values_list("pk", flat=True)[:limit])
        rows = Job.objects.using(using).filter(pk__in=ids)
        rows.update(node=node, token=token, **RUNNING)
        return list(rows.order_by("rank", "run_at", "id"))


#: What a claim writes, beside the node and the token.
RUNNING = {
    "state": State.RUNNING,
    "lease": F("lease") + 1,
    "backend": None,
    "started_at": Now(),
    "limit_place": None,
    "queue_place": None,
}


def ready(using: str, queue: str, node: uuid.UUID) -> QuerySet[Job]:
    """What the node may claim of the queue, in its order."""
    return (
        Job.objects.using(using)
        .filter(
            CLAIMABLE,
            Q(expires_at=None) | Q(expires_at__gt=Now()),
            Exists(Node.objects.using(using).filter(pk=node, dead_at=None)),
            ~Exists(Pause.objects.using(using).filter(pk=queue)),
            queue=queue,
        )
        .order_by("rank", "run_at", "id")
    )


def new_token() -> int:
    """63 bits: the fence of a claim, beside its lease."""
    return random.SystemRandom().getrandbits(63)


def owned(job: Job) -> QuerySet[Job]:
    """The fence: the job's row, as long as it is this run's. A zombie, whose job was given to another, finds none."""
    return Job.objects.using(job._state.db).filter(pk=job.pk, state=State.RUNNING, lease=job.lease, token=job.token)


def renew(job: Job) -> bool:
    """Give a claimed row a token of its own, and its claim a synchronous commit; False: it was given back meanwhile.

    Race: the companion gives back what waits behind a long body, by the token of the claim. One finds the row changed.
    """
    using, token = str(job._state.db), new_token()
    if connections[using].vendor == "postgresql":
        values = {"token": token, "id": job.pk, "lease": job.lease, "before": job.token}
        done = session_of(using).execute(_RENEW, values) == 1
    else:
        done = owned(job).update(token=token, started_at=Now()) == 1
    if done:
        job.token = token
    return done


def succeed(job: Job, result: Any, runtime: float, source: Job | None = None) -> bool:
    """The last statement of the body's own transaction, so that effects and completion are one commit.

    On PostgreSQL the COMMIT goes with it, in one message to the server, if the transaction is the body's own.
    False: the job was given to another run, or was asked to end (``lifecycle.heed``).

    Parameters:
        runtime: seconds since the body began; the row was claimed before that, together with others.
        source: the job that had done the work before, if any; the result is its own.
    """
    using = str(job._state.db)
    connection = connections[using]
    # The body may have caught an error that its transaction did not survive.
    connection.validate_no_broken_transaction()
    if source is None and connection.vendor == "postgresql":
        done = _succeed(connection, using, job, result, runtime)
    elif source is None and connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            text = None if result is None else json.dumps(result)
            cursor.execute(_SUCCEED_SQLITE, [text, job.pk.hex, job.lease, job.token, job.pk.hex])
            done = cursor.rowcount == 1
    else:
        ours = owned(job).filter(~Exists(Cancellation.objects.using(using).filter(pk=job.pk)))
        values = {"state": State.SUCCEEDED, "finished_at": Now(), "result": result, "error": None}
        done = ours.update(**values, **({"replay_of": source.pk} if source else {})) == 1
    if done:
        job.__dict__.update(state=State.SUCCEEDED, result=result, error=None)
        # Read from the row when somebody asks for them.
        for computed in ("finished_at", "started_at", "replay_of"):
            job.__dict__.pop(computed, None)
    return done


def _succeed(connection: Any, using: str, job: Job, result: Any, runtime: float) -> bool:
    session = session_of(using)
    text = "NULL" if result is None else "'" + json.dumps(result).replace("'", "''") + "'"
    values = (text, f"{runtime:.6f}", f"'{job.pk}'", str(job.lease), str(job.token))
    begin = commit = ""
    # A savepoint around it: the transaction is somebody else's. A test may want to stop in between.
    is_own = connection.in_atomic_block and not connection.savepoint_ids and not is_armed("after_completion")
    if has_begun(connection):
        commit = "; COMMIT" if is_own else ""
    elif connection.in_atomic_block and not is_own:
        # Else the body executed nothing, and one statement commits by itself; a COMMIT would be warned of.
        begin = "BEGIN; "
    try:
        with session.wrap:
            name = session.prepared(_SUCCEED_PREPARED)
            sql = f"EXECUTE {name}({', '.join(values)})" if name else _SUCCEED.format(*values)
            session.send(begin + sql + commit)
    except DataError as exc:
        if databases.sqlstate(exc) != DIVISION_BY_ZERO:
            raise
        return False
    return True


def has_begun(connection: Any) -> bool:
    """Whether the transaction has begun: psycopg sends BEGIN before the first statement, and not earlier."""
    return databases.status(connection) != databases.IDLE


class Session:
    """A connection to PostgreSQL, with a cursor of its own: Django's binds in the client, and prepares nothing."""

    #: Raises Django's exceptions; of the wrapper that has the connection at the moment.
    wrap: Any

    def __init__(self, raw: Any) -> None:
        import psycopg

        self.cursor = psycopg.Cursor(raw)
        # A pooler tells its clients another number than the server does. The process would be anybody's by the time
        # somebody ends it, and a statement that is prepared on it is another client's.
        pid = self.cursor.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
        self.is_direct = pid is not None and pid[0] == raw.info.backend_pid
        self.backend: int | None = raw.info.backend_pid if self.is_direct else None
        if self.is_direct and raw.prepare_threshold is None:
            # Django lets psycopg prepare nothing at all; now it does where it is asked to.
            raw.prepare_threshold = sys.maxsize
        self._plan_at = 0.0
        self._prepared = 0
        self._is_busy = False

    def fetch(self, sql: str, values: Any) -> list[Any]:
        with self.wrap:
            # Not if the last look found nothing: a worker that waits costs as little as it can.
            if self.is_direct and self._is_busy and time.monotonic() > self._plan_at:
                self.send("DISCARD PLANS")
                self._plan_at = time.monotonic() + PLANNED
            rows = self.cursor.execute(sql, values, prepare=self.is_direct).fetchall()
            self._is_busy = bool(rows)
            return rows

    def execute(self, sql: str, values: Any) -> int:
        with self.wrap:
            return self.cursor.execute(sql, values, prepare=self.is_direct).rowcount

    def notify(self, channel: str, payloads: Iterable[str]) -> None:
        statements = (f"NOTIFY {channel}, {self.literal(each)}" for each in payloads)
        with self.wrap:
            self.send("; ".join(statements))

    def insert(self, sql: str, values: Sequence[str | None]) -> int:
        """Execute an INSERT of texts, and return how many rows it made.

        If nothing else is under way, it goes past psycopg's cursor, which takes as long as the server.
        """
        with self.wrap:
            raw, pgconn = self.cursor.connection, self.cursor.connection.pgconn
            status = pgconn.transaction_status
            # psycopg sends BEGIN, and a caller of its own may have a pipeline, or read a stream.
            is_free = status == databases.INTRANS or (status == databases.IDLE and raw.autocommit)
            if not is_free or pgconn.pipeline_status or _is_green() or not (name := self.prepared(f"AS {sql}")):
                return self.cursor.execute(sql, values, prepare=self.is_direct).rowcount
            texts: Any = [None if each is None else each.encode() for each in values]
            return int(self._checked(pgconn.exec_prepared(name.encode(), texts)).command_tuples or 0)

    def prepared(self, statement: str) -> str:
        """The name of a statement ("AS ...") that is prepared, as it is from the first time on; empty: it cannot be.

        After each rollback, also to a savepoint, psycopg forgets what it has prepared, and deallocates all there is. So
        ours is among what it knows; as long as the deallocation is to come, nothing is prepared.
        """
        known = getattr(self.cursor.connection, "_prepared", None)
        names = getattr(known, "_names", None)
        if not self.is_direct or names is None or getattr(known, "_to_flush", True):
            return ""
        # psycopg's key: the query, and the types of its values.
        key = (statement.encode(), ())
        if (name := names.get(key)) is None:
            self._prepared += 1
            name = b"jobs_%d" % self._prepared
            places = tuple(f"${place}" for place in range(1, statement.count("%s") + 1))
            self.send(f"PREPARE {name.decode()} {statement % places}")
            names[key] = name
        return str(name.decode())

    def literal(self, text: str) -> str:
        from psycopg import pq

        return bytes(pq.Escaping(self.cursor.connection.pgconn).escape_literal(text.encode())).decode()

    def send(self, sql: str) -> Any:
        """Execute statements without values, in one message, by the shortest way there is (as psycopg, it raises).

        Returns:
            psycopg.pq.PGresult: the last one's.
        """
        return self._checked(self.cursor.connection.pgconn.exec_(sql.encode()))

    def _checked(self, result: Any) -> Any:
        from psycopg import errors, pq

        pgconn = self.cursor.connection.pgconn
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            if pgconn.status == pq.ConnStatus.BAD:
                raise errors.OperationalError(pgconn.get_error_message())
            raise errors.error_from_result(result)
        return result


def _is_green() -> bool:
    """Whether this process runs gevent's greenlets: a wait inside libpq would hold up all of them."""
    gevent = sys.modules.get("gevent.monkey")
    return gevent is not None and bool(gevent.is_module_patched("select"))


def session_of(using: str) -> Session:
    connection: Any = connections[using]
    if connection.connection is None:
        connection.ensure_connection()
    raw = connection.connection
    session: Session | None = getattr(raw, "_jobs_session", None)
    if session is None:
        with connection.wrap_database_errors:
            session = raw._jobs_session = Session(raw)
    session.wrap = connection.wrap_database_errors
    return session
