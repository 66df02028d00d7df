"""The SQL of queues where keys take turns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import lru_cache

from django.db.models import Count

from jobs import store
from jobs.contrib.fair.models import KEYED
from jobs.models import Job
from jobs.models.columns import BY_ORDER
from jobs.store.base import Claim
from jobs.store.postgresql import ONLY, READY, WITHOUT
from jobs.store.sessions import literal

#: How many keys of a queue are counted.
KEYS = 1000

#: The condition of the index: it has no other rows.
WAITS = "state = 'ready' AND held IS NULL AND queue = {queue} AND fair_key IS NOT NULL"

#: The next key behind another. The operators are those of the index.
_NEXT = """
SELECT fair_key::text AS key FROM jobs_job
WHERE {waits} AND fair_key ~>~ {start} {behind} ORDER BY fair_key USING ~<~ LIMIT 1"""

#: The same, where some keys have a place: what stands before the place is not read. The rows there are gone, but their
#: index entries stay while another session keeps an old transaction open. It goes from each known key to the next.
_NEXT_KNOWN = f"""
(SELECT found.key FROM (SELECT * FROM known ORDER BY key USING ~<~) AS known CROSS JOIN LATERAL (
    ({_NEXT.replace("{behind}", "AND fair_key ~>~ known.before AND fair_key ~<~ known.key")})
    UNION ALL
    (SELECT known.key FROM jobs_job WHERE {{waits}} AND fair_key = known.key
     AND ({BY_ORDER}) > (known.at_rank, known.at_run_at, known.at_id) ORDER BY {BY_ORDER} LIMIT 1)
    LIMIT 1
) AS found WHERE known.key ~>~ {{start}} LIMIT 1)
UNION ALL
({_NEXT.replace("{behind}", "AND fair_key ~>~ %(fair_last)s")})
LIMIT 1"""

#: The keys that have a place, each with the one before it.
_KNOWN = """known AS (
    SELECT * FROM jsonb_to_recordset(%(fair_places)s::jsonb)
        AS known (key text, before text, at_rank smallint, at_run_at timestamptz, at_id uuid)
), """

#: The join with the place of a key, and the condition for what stands behind it.
_AT = "LEFT JOIN LATERAL (SELECT * FROM known WHERE known.key = turn.key LIMIT 1) AS known ON true"
_BEHIND = f"""AND ({BY_ORDER}) > (coalesce(known.at_rank, '-32768'::smallint),
            coalesce(known.at_run_at, '-infinity'), coalesce(known.at_id, '{uuid.UUID(int=0)}'))"""

#: Key by key: from the place to the end, and then from the beginning up to the place.
_KEYS = """
WITH RECURSIVE {known} step (key, place, is_round) AS (
    SELECT %(fair_key)s::text, 0, false
    UNION ALL
    SELECT following.key, step.place + 1, following.is_round
    FROM step CROSS JOIN LATERAL (
        (SELECT key, step.is_round FROM ({next}) AS next)
        UNION ALL
        (SELECT key, true FROM ({first}) AS first WHERE NOT step.is_round)
        LIMIT 1
    ) AS following
    WHERE step.place < {most} AND NOT (following.is_round AND following.key {behind} %(fair_key)s)
), turn AS (
    SELECT key, place, {weight} AS weight FROM step WHERE place >= {begin}
)"""

#: The first jobs of each key, in the queue's order.
_ROWS = """
FROM turn {at} CROSS JOIN LATERAL (
    SELECT own.*, row_number() OVER () AS number FROM (
        SELECT {columns} FROM jobs_job WHERE {ready} AND fair_key = turn.key {behind} {tasks}
        ORDER BY {order} LIMIT {share} {lock}
    ) AS own
) AS job"""

_WEIGHT = "CASE WHEN place = 0 THEN %(fair_left)s::int ELSE coalesce((%(fair_weights)s::jsonb ->> key)::int, 1) END"
#: How many of each key: as many rounds as it takes to get the number asked for. A single key gets all of it.
SHARE = "least({size}, turn.weight * ceil({size}.0 / (SELECT sum(weight) FROM turn)))::int"
#: The order in which a claim takes jobs.
ROUND = "(number - 1) / weight, place, number"


#: The keys of a queue, and how many jobs of each wait, counted up to a number.
_COUNTS = """
WITH RECURSIVE step (key, place) AS (
    SELECT (SELECT fair_key FROM jobs_job WHERE {waits} ORDER BY fair_key {using} LIMIT 1), 1
    UNION ALL
    SELECT (SELECT fair_key FROM jobs_job WHERE {waits} AND fair_key {behind} step.key
            ORDER BY fair_key {using} LIMIT 1), place + 1
    FROM step WHERE step.key IS NOT NULL AND place < {keys}
)
SELECT key, (SELECT count(*) FROM (SELECT 1 FROM jobs_job WHERE {waits} AND fair_key = step.key LIMIT {most}) AS own)
FROM step WHERE key IS NOT NULL
"""
#: The operators of PostgreSQL's index, and of SQLite's.
_TEXT, _PLAIN = {"using": "USING ~<~", "behind": "~>~"}, {"using": "", "behind": ">"}


def rows_sql(
    claim: Claim, columns: str, share: str, most: int, lock: str, is_left: bool, is_weighted: bool, is_known: bool
) -> str:
    """The first jobs of the next keys (PostgreSQL); ``{{select}}`` stands for the selected columns.

    Parameters:
        share: how many jobs of each key.
        most: how many keys.
        is_left: the turn of the key at which the last claim ended is not over.
        is_known: some keys have a place.
    """
    tasks = bool(claim.without), bool(claim.only)
    return _rows_sql(claim.queue, *tasks, columns, share, most, lock, is_left, is_weighted, is_known)


@lru_cache(maxsize=1000)
def _rows_sql(
    queue: str,
    is_without: bool,
    is_only: bool,
    columns: str,
    share: str,
    most: int,
    lock: str,
    is_left: bool,
    is_weighted: bool,
    is_known: bool,
) -> str:
    name, following = literal(queue), _NEXT_KNOWN if is_known else _NEXT
    waits = WAITS.format(queue=name)
    words = {"most": most, "begin": 0 if is_left else 1, "known": _KNOWN if is_known else ""}
    words |= {
        "next": following.format(waits=waits, start="step.key", behind=""),
        "first": following.format(waits=waits, start="''", behind=""),
    }
    words |= {"behind": "~>=~" if is_left else "~>~", "weight": _WEIGHT if is_weighted else "1"}
    rows = {"columns": columns, "ready": READY.format(queue=name), "order": BY_ORDER, "share": share, "lock": lock}
    rows |= {"at": _AT, "behind": _BEHIND} if is_known else {"at": "", "behind": ""}
    tasks = (WITHOUT if is_without else "") + (ONLY if is_only else "")
    return _KEYS.format(**words) + "\nSELECT {select}" + _ROWS.format(**rows, tasks=tasks)


def keyed(using: str, queues: Sequence[str]) -> list[str]:
    """The queues, out of these, in which a job with a key is ready."""
    where = WAITS.format(queue="%s")
    return store.of(using).of_queues(f"EXISTS (SELECT 1 FROM jobs_job WHERE {where})", queues)


def waiting(using: str, queue: str, most: int) -> list[tuple[str, int]]:
    """The first :data:`KEYS` keys of a queue, and how many jobs each has ready, counted up to ``most``."""
    at = store.of(using)
    if not at.writes_at_once and not at.has_one_writer:
        rows = Job.objects.using(using).filter(KEYED, queue=queue)
        return list(rows.order_by("fair_key").values_list("fair_key").annotate(Count("pk"))[:KEYS])
    waits = WAITS.format(queue=literal(queue))
    sql = _COUNTS.format(waits=waits, keys=KEYS, most=most, **(_TEXT if at.writes_at_once else _PLAIN))
    return [(key, count) for key, count in at.ask(sql)]
