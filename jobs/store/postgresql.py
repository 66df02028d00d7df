"""PostgreSQL. The work that every job needs is one statement, which is not in Django's log."""

from __future__ import annotations

import datetime
import json
import random
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

from django.db import DataError, OperationalError, transaction
from django.db.models import BooleanField, F, Func, Q, Value

from jobs.conf.syncpoints import is_armed
from jobs.models import Job
from jobs.models.columns import BY_ORDER, ORDER, Part, named
from jobs.store import base, databases
from jobs.store.base import COMMITTED_WITHIN, RUNS, Claim, Seen, Since
from jobs.store.sessions import Session, has_begun, literal, quoted, session_of

#: The jobs of a queue that a node may claim.
READY = """state = 'ready' AND held IS NULL AND queue = {queue}
      AND (expires_at IS NULL OR expires_at > statement_timestamp())
      AND EXISTS (SELECT 1 FROM jobs_node WHERE id = %(node)s AND dead_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = {queue})"""

#: The commit of this transaction need not wait for the disk.
UNSYNCED = "FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unsynced"

#: A claim's commit need not either (a crash that loses it does no harm), unless bodies begin at once (token <= 0).
CLAIMED = """(SELECT set_config('synchronous_commit', CASE WHEN %(token)s > 0 THEN 'off'
    ELSE current_setting('synchronous_commit') END, true)) AS unsynced"""
CLAIM = f"""
UPDATE jobs_job
SET state = 'running', lease = lease + 1, token = %(token)s, node_id = %(node)s, backend = %(backend)s,
    started_at = statement_timestamp(), limit_slot = NULL, queue_slot = NULL
FROM {CLAIMED}
WHERE state = 'ready' AND id = ANY (ARRAY({{first}}))
RETURNING {{columns}}
"""

_FIRST = """
    SELECT id FROM jobs_job
    WHERE {ready} {after} {without}
    ORDER BY {order}
    LIMIT {limit}
    FOR UPDATE SKIP LOCKED
"""

#: A position in a queue. The planner sees the values, and plans each claim anew: a plan that is kept may have been made
#: when the table was empty.
AT = f"({BY_ORDER})"
HERE = "(%(rank)s::smallint, %(run_at)s::timestamptz, %(id)s::uuid)"

#: Behind the row that was claimed last. The rows before it are gone, but their index entries stay as long as any
#: session keeps an old transaction open, and a claim would step over all of them.
AFTER = f"AND {AT} > {HERE}"

#: Leaves out tasks with limits, which a claim of their own takes, and tasks that only another worker knows.
WITHOUT = "AND task <> ALL (%(without)s)"

#: The tasks whose bodies the process can run beside other bodies.
ONLY = "AND task = ANY (%(only)s)"

#: The row of a run, found by its key. The condition on the state lets the planner find the partition, but keeps it from
#: using the index of all running jobs.
STILL_RUNNING = "state IN ('running', 'ready') AND state || '' = 'running'"

RENEW = f"""
UPDATE jobs_job SET token = %(token)s, started_at = statement_timestamp()
WHERE id = %(id)s AND {STILL_RUNNING} AND token = %(before)s
"""

#: Zero rows raise an error (a division by zero), so that a COMMIT in the same message does not commit.
SUCCEED = f"""
WITH done AS (
    UPDATE jobs_job
    SET state = 'succeeded', finished_at = statement_timestamp(), result = {{0}}, error = NULL,
        started_at = statement_timestamp() - {{1}} * interval '1 second'
    WHERE id = {{2}} AND {STILL_RUNNING} AND lease = {{3}} AND token = {{4}}
      AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {{2}})
    RETURNING 1
)
SELECT 1 / count(*) FROM done
"""
#: The same, where a crash of the server may lose effects and completion together.
RELAXED = SUCCEED.replace("WHERE", f"{UNSYNCED}\n    WHERE", 1)
_SUCCEED_TYPES = "json, float8, uuid, int, bigint"

#: The same for several runs. Fewer rows than expected raise an error: nothing of their transaction is committed.
SUCCEED_ALL = f"""
WITH done AS (
    UPDATE jobs_job
    SET state = 'succeeded', finished_at = statement_timestamp(), result = run.result, error = NULL,
        started_at = statement_timestamp() - run.runtime * interval '1 second'
    FROM json_to_recordset({{0}}) AS run(id uuid, lease int, token bigint, result json, runtime float8)
    WHERE jobs_job.id = run.id AND {STILL_RUNNING} AND jobs_job.lease = run.lease AND jobs_job.token = run.token
      AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = run.id)
    RETURNING 1
)
SELECT 1 / (count(*) = {{1}})::int FROM done
"""
ALL_RELAXED = SUCCEED_ALL.replace("FROM", f"{UNSYNCED},", 1)

#: In one round trip: set the limit of the wait, INSERT under it, and restore the limit.
MARK = """
WITH bound AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', %s, true) AS during
), taken AS (
    INSERT INTO jobs_marker (key, kind, fingerprint, job, created_at, expires_at)
    SELECT %s, %s, %s, %s::uuid, statement_timestamp(), statement_timestamp() + %s * interval '1 second' FROM bound
    ON CONFLICT DO NOTHING RETURNING 1
), done AS (SELECT count(*) AS rows FROM taken)
SELECT done.rows, set_config('lock_timeout', CASE WHEN done.rows >= 0 THEN bound.before END, true) FROM bound, done
"""

#: The ranks that a short look looks at: Celery's priorities are 0 to 9, sorted either way.
RANKS = range(-9, 10)

#: The first job that waits in the queue ``own``, read from the index that the claim uses; and the same among the jobs
#: added a moment ago, one step for each rank.
FIRST = f"SELECT 1 FROM jobs_job WHERE state = 'ready' AND held IS NULL AND queue = own ORDER BY {BY_ORDER} LIMIT 1"
NEW_FIRST = f"""SELECT 1 FROM unnest(ARRAY{[*RANKS]}::smallint[]) AS its CROSS JOIN LATERAL (
        SELECT 1 FROM jobs_job WHERE state = 'ready' AND held IS NULL AND queue = own AND rank = its
        AND run_at >= statement_timestamp() - interval '{COMMITTED_WITHIN} s' ORDER BY run_at, id LIMIT 1
    ) AS found LIMIT 1"""

#: The queues, of those given, in which a job waits: one step for each queue, and the same plan for any queues.
WITH_READY = """
SELECT own FROM unnest({queues}::text[]) AS own
WHERE ({first}) IS NOT NULL AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = own)
"""


def json_literal(value: Any) -> str:
    return "NULL" if value is None else quoted(json.dumps(value))


class Among(Func):
    """A column is one of many ids, passed as one value. ``IN`` passes each id: that takes longer than the query."""

    template, arg_joiner, output_field = "%(expressions)s::%(kind)s[])", " = ANY (", BooleanField()


class PostgreSQL(base.Store):
    has_notify = claims_after = compares = writes_at_once = True
    ignoring = ("INSERT", " ON CONFLICT DO NOTHING")

    @property
    def session(self) -> Session:
        return session_of(self.using)

    # A call

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """A limit for ``server_side_binding``: Django does not know how many values a statement takes then."""
        is_bound = self.connection.settings_dict["OPTIONS"].get("server_side_binding")
        return 65_535 // len(Job._meta.concrete_fields) if is_bound else None

    def among(self, column: str, ids: Collection[Any]) -> Any:
        kind = "bigint" if isinstance(next(iter(ids), None), int) else "uuid"
        return Among(F(column), Value(f"{{{','.join(map(str, ids))}}}"), kind=kind)

    def free_unique_keys(self, ids: Sequence[uuid.UUID], is_over: Q) -> None:
        """Use a separate connection: the caller's transaction would keep these rows locked until it ends.

        Meanwhile no process could claim or finish these jobs.
        """
        with databases.apart(self.using) as connection, connection.cursor() as cursor:
            # Set it for this statement only: behind a pooler the next client gets the same session.
            bound = "(SELECT set_config('lock_timeout', '1s', true)) AS bound"
            late = "state IN ('scheduled', 'ready') AND expires_at <= now()"
            where = f"finished_at IS NULL AND id = ANY(%s) AND (unique_expires_at <= now() OR {late})"
            try:
                cursor.execute(f"UPDATE jobs_job SET unique_key = NULL FROM {bound} WHERE {where}", [list(ids)])
            except OperationalError as exc:
                # Race: one of the jobs has ended, and its key is free. The caller looks again.
                if not databases.is_conflict(exc):
                    raise
                return
            if cursor.rowcount:
                return
        # The rows are of this transaction, and no other connection sees them yet.
        super().free_unique_keys(ids, is_over)

    def notify(self, channel: str, payloads: Sequence[str]) -> None:
        self.session.notify(channel, payloads)

    # A claim

    def claim(self, claim: Claim) -> list[Job]:
        session = self.session
        values = {"node": claim.node, "token": claim.token, "backend": session.backend, "without": list(claim.without)}
        values |= {"only": list(claim.only), **dict(zip(ORDER, claim.after, strict=False))}
        if claim.order is not None:
            first, more = claim.order.first(claim)
            sql, values = CLAIM.format(first=first, columns=", ".join(named(Part.CLAIM))), values | more
        else:
            sql = claim_sql(claim.queue, claim.limit, bool(claim.after), bool(claim.without), bool(claim.only))
        # Race: one of the first jobs was cancelled since the statement began.
        return self.claimed(databases.again_if_moved(self.using, lambda: session.fetch(sql, values), is_one=True))

    def with_ready(self, queues: Sequence[str]) -> list[str]:
        sql = WITH_READY.format(queues="%(queues)s", first=FIRST)
        return [queue for [queue] in self.session.fetch(sql, {"queues": list(queues)})]

    def has_running(self) -> bool:
        return self.session.send(RUNS) is not None

    def look(self, queues: Sequence[str], more: Iterable[str], since: Since | None = None) -> Seen:
        more = [*more]
        sql, _ = self._look_sql(queues, more, since)
        sql = sql % f"ARRAY[{', '.join(map(quoted, queues))}]"
        names = ", ".join(("now", "due", "late", *(f"answer{number}" for number in range(2 + len(more)))))
        found = self.session.send(f"SELECT json_build_array({names})::text FROM ({sql}) AS seen ({names})")
        *times, is_asked, is_ready = (found := json.loads(str(found)))[:5]
        now, due, late = (each and datetime.datetime.fromisoformat(each) for each in times)
        return Seen(now, due, late, is_asked, is_ready, tuple(found[5:]))

    def _ready(self, queues: Sequence[str], is_short: bool) -> tuple[str, list[Any]]:
        sql = WITH_READY.format(queues="%s", first=NEW_FIRST if is_short else FIRST)
        return f"({sql} LIMIT 1) IS NOT NULL", [list(queues)]

    def renew(self, job: Job, token: int) -> bool:
        return self.session.execute(RENEW, {"token": token, "id": job.pk, "before": job.token}) == 1

    # A run

    def prepare_body(self) -> None:
        if self.connection.in_atomic_block:
            count_begins(self.connection)

    def has_ended(self) -> bool:
        begun = getattr(self.connection.connection, "_jobs_begun", 0)
        return bool(begun > 1 or (begun == 1 and not has_begun(self.connection)))

    def succeed(self, job: Job, result: Any, runtime: float, is_synced: bool = True) -> bool:
        values = json_literal(result), f"{runtime:.6f}", f"'{job.pk}'", str(job.lease), str(job.token)
        template = SUCCEED if is_synced else RELAXED
        return self.write_last(_SUCCEED_TYPES, template, values, "after_completion") is not False

    def succeed_all(self, done: Sequence[tuple[Job, Any, float]], is_synced: bool) -> bool:
        names = "id", "lease", "token", "result", "runtime"
        rows = [(str(job.pk), job.lease, job.token, result, took) for job, result, took in done]
        values = json_literal([dict(zip(names, row, strict=True)) for row in rows]), str(len(rows))
        template = SUCCEED_ALL if is_synced else ALL_RELAXED
        return self.write_last("json, int", template, values, "after_completion") is not False

    def write_last(
        self, types: str, template: str, values: Sequence[str], point: str, commits: bool = True
    ) -> str | Literal[False] | None:
        """Execute the last statement of a transaction; returns its first value as text. False: the run lost its job.

        Parameters:
            template: the statement with places for ``values`` of these ``types``. It divides by zero if it finds no
                row that the fence allows. The values are SQL literals.
            point: the sync point between the statement and its commit.
            commits: nothing is left to do before the commit, so the session may send it, too.
        """
        try:
            return self.session.send_last(types, template, values, commits, is_armed(point))
        except DataError as exc:
            if databases.sqlstate(exc) != databases.DIVISION_BY_ZERO:
                raise
            return False

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        with transaction.atomic(using=self.using), self.connection.cursor() as cursor:
            # A random limit: two transactions that wait for each other would else both give up at the same moment.
            limit = _as_limit(random.uniform(0.7, 1) * seconds)
            cursor.execute("SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)", [limit])
            before = cursor.fetchone()[0]
            yield
            # After an exception the rollback to the savepoint restores it.
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])

    def end_if_idle(self, seconds: float) -> None:
        if not databases.in_test(self.using):
            self.ask("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", f"{seconds:g}s")

    def insert_marker(
        self, key: str, kind: str, fingerprint: str, job: uuid.UUID | None, keep: float | None, wait: float
    ) -> bool:
        found = self.ask(MARK, _as_limit(wait), key, kind, fingerprint, job and job.hex, keep)
        return bool(found[0][0] == 1)


def _as_limit(seconds: float) -> str:
    """As a value of ``lock_timeout``, which is a 32 bit number of milliseconds, and waits for ever if it is 0."""
    return f"{min(max(1.0, seconds * 1000), 2**31 - 1):.0f}ms"


@lru_cache(maxsize=1000)
def claim_sql(queue: str, limit: int, is_after: bool, is_without: bool, is_only: bool = False) -> str:
    """The queue and the limit are literals in it: so the planner uses the index, whatever its statistics are."""
    tasks = (WITHOUT if is_without else "") + (ONLY if is_only else "")
    words = {"after": AFTER if is_after else "", "without": tasks, "order": BY_ORDER}
    words |= {"ready": READY.format(queue=literal(queue))}
    return CLAIM.format(first=_FIRST.format(limit=limit, **words), columns=", ".join(named(Part.CLAIM)))


def count_begins(connection: Any) -> None:
    """Count from now on how many transactions psycopg begins. psycopg2 does not show it."""
    raw = connection.connection
    if not hasattr(raw, "_get_tx_start_command"):
        return
    if not hasattr(raw, "_jobs_begun"):
        begin = raw._get_tx_start_command

        def counted() -> bytes:
            raw._jobs_begun += 1
            return begin()

        raw._get_tx_start_command = counted
    raw._jobs_begun = int(has_begun(connection))
