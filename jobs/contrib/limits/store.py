"""The claim where limits are in force, as one PostgreSQL statement: no lock is held while the process is waiting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from jobs import store
from jobs.contrib.limits.limits import Limits, name_of
from jobs.contrib.limits.models import RateLimiter
from jobs.contrib.limits.rates import Limit
from jobs.models import Job
from jobs.models.columns import BY_ORDER, ORDER, Part, named
from jobs.store.base import Claim
from jobs.store.postgresql import AT, CLAIMED, HERE, ONLY, READY, WITHOUT
from jobs.store.sessions import literal, session_of

#: The question that the clock asks (``Extension.looks``).
LOOKS = {
    "is_limited": "jobs_limit",
    "holds": "jobs_rate_limiter WHERE look_at IS NOT NULL",
    "may_open": "jobs_rate_limiter WHERE look_at <= {epoch} ORDER BY look_at",
    #: Later than any time that workers set: so the clock was put back.
    "is_far": "jobs_rate_limiter WHERE look_at > {epoch} + 61 ORDER BY look_at DESC",
}

_NOW = "EXTRACT(EPOCH FROM statement_timestamp())::float8"

#: The first jobs of the queue, one by one until there are enough. Of each limit it takes only the first job in line,
#: and only if a slot is free. Jobs that it passes over are not locked.
_CLAIM = """
WITH first AS MATERIALIZED (
    SELECT id, limit_key, rank, run_at, place, array_position({tasks}::text[], task::text) AS own
    FROM ({window}) AS rows
), taken AS MATERIALIZED (
    -- Once, and not for each key: the planner may choose the index of all that runs, and read all of it.
    SELECT limit_key, array_agg(limit_slot) AS taken_slots FROM jobs_job
    WHERE state = 'running' AND limit_slot IS NOT NULL AND limit_key = ANY (ARRAY(SELECT limit_key FROM first))
    GROUP BY limit_key
), found AS MATERIALIZED (
    SELECT job.id, head.place, head.rank, head.run_at, head.limit_key, head.slot, head.burst,
        coalesce(head.pause, 0) AS pause
    FROM (
        SELECT id, place, limit_key, rank, run_at, own, slots, burst, pause, number,
            CASE WHEN number > 1 THEN NULL WHEN taken_slots IS NULL AND slots > 0 THEN 0 ELSE (
                SELECT free FROM generate_series(0, slots - 1) AS free
                WHERE free <> ALL (taken_slots)
                    -- The limit may have been higher when those began that run.
                    AND slots > cardinality(taken_slots)
                LIMIT 1
            ) END AS slot
        FROM (
            SELECT id, place, limit_key, rank, run_at, own, taken_slots, ({slots}::int[])[own] AS slots,
                ({bursts}::int[])[own] AS burst, ({pauses}::float8[])[own] AS pause,
                row_number() OVER (PARTITION BY limit_key ORDER BY {order}) AS number
            FROM first LEFT JOIN taken USING (limit_key)
        ) AS numbered
        ORDER BY place, {order}
    ) AS head
    -- One by one by their key, whatever the planner thinks of the table. What is asked of a row is asked once more when
    -- it is locked: another claim may have held it since, or somebody moved it.
    CROSS JOIN LATERAL (
        SELECT id FROM jobs_job WHERE id = head.id AND state = 'ready' AND held IS NULL AND queue = {queue}
        FOR UPDATE SKIP LOCKED
    ) AS job
    WHERE head.own IS NULL OR (
        -- One that was called before its task had a limit has no key yet.
        head.limit_key IS NOT NULL AND (head.slots IS NULL OR head.slot IS NOT NULL)
        AND head.number = 1
        -- Jobs that are held are not among the rows that were read, and may stand before it in its line.
        AND CASE WHEN (SELECT NOT EXISTS (SELECT 1 FROM jobs_rate_limiter WHERE look_at IS NOT NULL)) THEN true
            ELSE NOT EXISTS (
                -- From the first one on that is held: of those before it there are index entries, and no rows.
                SELECT 1 FROM (
                    SELECT coalesce(held_rank, -32768)::smallint AS rank, coalesce(held_from, '-infinity') AS run_at,
                        coalesce(held_id, '00000000-0000-0000-0000-000000000000') AS id
                    FROM (SELECT 1) AS one LEFT JOIN jobs_rate_limiter
                        ON key = head.limit_key AND look_at IS NOT NULL
                    OFFSET 0
                -- The first of the line, and not all before this one: where the ranks are equal, a scan up to a row
                -- goes on to the end of the line.
                ) AS held CROSS JOIN LATERAL (
                    SELECT rank, run_at, id FROM jobs_job AS earlier
                    WHERE earlier.state = 'ready' AND earlier.limit_key = head.limit_key AND earlier.queue = {queue}
                      AND (earlier.rank, earlier.run_at, earlier.id) >= (held.rank, held.run_at, held.id)
                    ORDER BY limit_key, queue, {order} LIMIT 1
                ) AS earliest
                WHERE (earliest.rank, earliest.run_at, earliest.id) < (head.rank, head.run_at, head.id)
            ) END {open}
    )
    ORDER BY head.place, head.rank, head.run_at, head.id
    LIMIT {limit}
) {picked}
UPDATE jobs_job
SET state = 'running', lease = lease + 1, token = %(token)s, node_id = %(node)s, backend = %(backend)s,
    started_at = statement_timestamp(), limit_slot = {source}.slot, queue_slot = {queue_slot}
FROM {source}, {claimed}
WHERE jobs_job.state = 'ready' AND jobs_job.id = {source}.id {passed}
RETURNING {columns}
"""

#: The first rows of the queue. A claim with another order has its own window.
_WINDOW = """
    SELECT id, task, limit_key, rank, run_at, 0 AS place FROM jobs_job WHERE {ready} {where}
    ORDER BY {order} LIMIT {limit}
"""
_COLUMNS = "id, task, limit_key, rank, run_at"

#: Start at the row that was the first at the last look: old index entries of rows before it may still be there.
_START = f"AND {AT} >= {HERE}"
_UNTIL = f"AND {AT} <= (%(last_rank)s::smallint, %(last_run_at)s::timestamptz, %(last_id)s::uuid)"

#: The moment from which the next start is counted, as ``Limit.since``.
_NEXT = f"""CASE WHEN last_at > {_NOW} + 1 THEN {_NOW}
    ELSE least(next_at, least(last_at, {_NOW}) + {{burst}} * {{pause}}) END"""

#: The rate of a task's limit lets one start now.
_OPEN = f"""AND (head.pause = 0 OR NOT EXISTS (
            SELECT 1 FROM jobs_rate_limiter WHERE key = head.limit_key
            AND {_NEXT.format(burst="head.burst", pause="head.pause")} > {_NOW} + (head.burst - 1) * head.pause
        ))"""

#: For rates, and for a limit of the queue. A job that a rate lets start now must begin now, and not behind other jobs
#: of a batch: it is claimed alone.
_PICKED = f""", picked AS MATERIALIZED (
    SELECT * FROM (
        SELECT *, row_number() OVER best AS number, first_value(pause) OVER best AS first_pause
        FROM found WINDOW best AS (ORDER BY place, {BY_ORDER})
    ) AS ordered {{of_queue}}
    WHERE CASE WHEN first_pause > 0 THEN number = 1 ELSE pause = 0 END {{most}}
), paced AS MATERIALIZED (
    SELECT limit_key::text AS key,
        greatest((SELECT {_NEXT.format(burst="burst", pause="pause")}
            FROM jobs_rate_limiter WHERE key = limit_key), {_NOW}) AS base,
        pause AS step, (SELECT next_at FROM jobs_rate_limiter WHERE key = limit_key) AS seen
    FROM picked WHERE pause > 0 {{queue_paced}}
), passed AS (
    INSERT INTO jobs_rate_limiter AS limiter (key, last_at, next_at) SELECT key, base, base + step FROM paced
    ON CONFLICT (key) DO UPDATE SET last_at = EXCLUDED.last_at, next_at = EXCLUDED.next_at
    -- Else another claim was faster, and this one gets nothing.
    WHERE limiter.next_at <= EXCLUDED.last_at
        OR limiter.next_at = (SELECT seen FROM paced WHERE paced.key = limiter.key)
    RETURNING 1
), counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM passed) AS passed, (SELECT count(*) FROM paced) AS paced
)"""

#: A claim passes all its limiters, or none: if it passed the task's limiter and not the queue's, an error (a division
#: by zero) undoes the statement.
_PASSED = """AND (
    SELECT CASE WHEN passed = paced THEN true WHEN passed = 0 THEN false ELSE 1 / (passed - passed) = 1 END FROM counted
)"""

#: For a queue with a concurrency: each row gets the next free slot of the queue.
_OF_QUEUE = """JOIN (
        SELECT slot AS queue_slot, row_number() OVER (ORDER BY slot) AS number
        FROM generate_series(0, {slots} - 1) AS slot
        WHERE NOT EXISTS (
            SELECT 1 FROM jobs_job AS other
            WHERE other.state = 'running' AND other.queue = {queue} AND other.queue_slot = slot
        )
        ORDER BY slot LIMIT greatest(0, {slots} - (
            SELECT count(*) FROM jobs_job AS other
            WHERE other.state = 'running' AND other.queue = {queue} AND other.queue_slot IS NOT NULL
        ))
    ) AS spots USING (number)"""

#: For a queue with a rate: how many may start now.
_QUEUE_RATE = f"""CROSS JOIN (
        SELECT greatest((SELECT {_NEXT} FROM jobs_rate_limiter WHERE key = {{name}}), {_NOW}) AS queue_base
    ) AS queue_limiter"""
_QUEUE_PACED = """UNION ALL
    SELECT {name}, min(queue_base), count(*) * {pause}, (SELECT next_at FROM jobs_rate_limiter WHERE key = {name})
    FROM picked HAVING count(*) > 0"""

#: One statement, so that other processes get at the limiters even if this one stops.
_HOLD = """
WITH held AS (
    UPDATE jobs_job SET held = true
    WHERE state = 'ready' AND id = ANY (ARRAY(
        SELECT id FROM jobs_job WHERE id = ANY (%(ids)s) AND state = 'ready' AND held IS NULL FOR UPDATE SKIP LOCKED
    ))
    RETURNING limit_key, rank, run_at, id
), noted AS (
    INSERT INTO jobs_rate_limiter AS limiter (key, look_at, {held})
    SELECT DISTINCT ON (limit_key) limit_key, EXTRACT(EPOCH FROM clock_timestamp()), {order}
    FROM held ORDER BY limit_key, {order}
    -- Of a rate that is used up nobody can be let in before its time.
    ON CONFLICT (key) DO UPDATE SET look_at = greatest(EXCLUDED.look_at, least(limiter.next_at, EXCLUDED.look_at + 1)),
        ({held}) = (
            SELECT {held} FROM (VALUES (EXCLUDED.held_rank, EXCLUDED.held_from, EXCLUDED.held_id)) AS new ({held})
            -- Else others were held before, of which the first is not known, or stands before these.
            WHERE limiter.look_at IS NULL OR ({held}) < (limiter.held_rank, limiter.held_from, limiter.held_id)
            UNION ALL SELECT limiter.held_rank, limiter.held_from, limiter.held_id
            LIMIT 1
        )
)
SELECT count(*) FROM held
"""
#: The columns with the place of the first held job; it may no longer be there.
PLACE = ("held_rank", "held_from", "held_id")


def behind(line: QuerySet[Job], limiter: RateLimiter) -> QuerySet[Job]:
    """The line from the first held job on: before it there are only old index entries, and no rows."""
    if limiter.held_rank is None or not store.of(line.db).writes_at_once:
        return line
    place = [getattr(limiter, name) for name in PLACE]
    return line.filter(RawSQL(f"({BY_ORDER}) >= (%s, %s, %s)", place, BooleanField()))


def hold(using: str, ids: Sequence[Any]) -> int:
    """Hold ready jobs back; returns how many of them were not held yet."""
    return int(session_of(using).fetch(_HOLD.format(held=", ".join(PLACE), order=BY_ORDER), {"ids": list(ids)})[0][0])


def take(
    using: str, claim: Claim, known: Limits, beyond: int, start: tuple[Any, ...] = (), last: tuple[Any, ...] = ()
) -> list[Job]:
    """Claim within the limits.

    Parameters:
        beyond: how many more rows it reads than it asks for.
        start, last: positions in the queue: where it begins, and ends.
    """
    session, own = session_of(using), known.queues.get(claim.queue, Limit())
    values = {"node": claim.node, "token": claim.token, "backend": session.backend, "without": list(claim.without)}
    values |= {"only": list(claim.only), **dict(zip(ORDER, start, strict=False))}
    values |= {f"last_{name}": value for name, value in zip(ORDER, last, strict=False)}
    limit = min(claim.limit, own.burst) if own.pause else claim.limit
    window, more = claim.order.window(claim, _COLUMNS) if claim.order is not None else ("", {})
    place = (_START if start else "") + (_UNTIL if last else "")
    tasks = (WITHOUT if claim.without else "") + (ONLY if claim.only else "")
    sql = claim_sql(claim.queue, limit, own, tuple(known.tasks.items()), beyond, f"{place} {tasks}", window)
    return store.of(using).claimed(session.fetch(sql, values | more))


@lru_cache(maxsize=1000)
def claim_sql(
    queue: str, limit: int, own: Limit, of_tasks: tuple[tuple[str, Limit], ...], beyond: int, where: str, window: str
) -> str:
    """The statement. It contains the limits as literals: they change seldom, and the planner sees them."""
    words: dict[str, Any] = {"queue": literal(queue), "name": literal(name_of(queue))}
    words |= {"slots": own.slots, "pause": own.pause, "burst": own.burst}
    of_queue = _OF_QUEUE.format(**words) if own.slots else ""
    is_paced = any(each.pause for _, each in of_tasks)
    most = queue_paced = picked = ""
    if own.pause:
        of_queue += _QUEUE_RATE.format(**words)
        queue_paced = _QUEUE_PACED.format(**words)
        most = f"AND number <= floor({own.burst} - (queue_base - {_NOW}) / {own.pause})"
    if is_paced or own != Limit():
        picked = _PICKED.format(of_queue=of_queue, most=most, queue_paced=queue_paced)
    ready = READY.format(queue=words["queue"])
    return _CLAIM.format(
        queue=words["queue"],
        order=BY_ORDER,
        window=window or _WINDOW.format(ready=ready, where=where, order=BY_ORDER, limit=limit + beyond),
        tasks=f"ARRAY[{', '.join(literal(name) for name, _ in of_tasks)}]",
        slots=f"ARRAY[{', '.join(str(each.slots or 'NULL') for _, each in of_tasks)}]",
        bursts=f"ARRAY[{', '.join(str(each.burst) for _, each in of_tasks)}]",
        pauses=f"ARRAY[{', '.join(str(each.pause) for _, each in of_tasks)}]",
        limit=limit,
        open=_OPEN if is_paced else "",
        picked=picked,
        source="picked" if picked else "found",
        claimed=CLAIMED,
        passed=_PASSED if picked else "",
        queue_slot="picked.queue_slot" if own.slots else "NULL",
        columns=", ".join(f"jobs_job.{name}" for name in named(Part.CLAIM)),
    )
