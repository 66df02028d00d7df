"""Jobs that wait behind others: of those of one ``order_key`` one after the other runs, each when the one before ended.

A job that waits behind others has a place, the smallest first, and a time that never comes. To let it in takes away
both. It is let in as long as no other job of its key is out, be that to run or to be tried again. Whoever ends a job
lets in the next one; if that process dies before it does, the next tick of any worker finds it.
"""

import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import Error, connections, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from jobs import store
from jobs.events.doors import WAITS
from jobs.events.models import EVENT_HEADER, Relay
from jobs.lifecycle import ring
from jobs.lifecycle.transitions import NEVER
from jobs.maintenance import Seldom
from jobs.models import LIVE, Job, State
from jobs.models.values import named
from jobs.store import databases
from jobs.store.databases import NOW_SQLITE
from jobs.store.sessions import has_begun, session_of

#: For how many keys one look lets in a job, at the most.
KEYS = 1000

#: The keys of which jobs wait, one step through the index for each; and nobody of theirs is out.
_STUCK = """
WITH RECURSIVE line (name) AS (
    SELECT min(order_key) FROM jobs_job WHERE {waits}
    UNION ALL
    SELECT (SELECT min(order_key) FROM jobs_job WHERE {waits} AND order_key > line.name) FROM line
    WHERE line.name IS NOT NULL
)
SELECT name FROM line WHERE name IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM jobs_job WHERE order_key = line.name AND order_place IS NULL AND {live}
) LIMIT {keys}
"""
#: Those of some keys of which a job is there: one step through the index for each, however many stand in its line. As
#: a join, or without the order, it might read all lines.
_OUT = """
WITH line (name) AS (VALUES {keys}) SELECT name FROM line
WHERE (SELECT 1 FROM jobs_job WHERE order_key = line.name AND {live} ORDER BY order_place LIMIT 1) IS NOT NULL
"""
#: The keys come sorted, so that two who lock several do not wait for each other.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(key, 7216)) FROM unnest({keys}::text[]) AS key"

_LIVE = "state IN ('scheduled', 'ready', 'running')"
STUCK = _STUCK.format(waits=WAITS, live=_LIVE, keys=KEYS)

#: The first that waits, if none of its key is out.
_LET_IN = f"""
UPDATE jobs_job SET state = 'ready', run_at = {{now}}, order_place = NULL
WHERE id = (SELECT id FROM jobs_job WHERE order_key = {{key}} AND {WAITS} ORDER BY order_place LIMIT 1) AND {WAITS}
  AND NOT EXISTS (SELECT 1 FROM jobs_job WHERE order_key = {{key}} AND order_place IS NULL AND {_LIVE})
RETURNING queue
"""


def out(using: str, keys: Collection[str]) -> set[Any]:
    """Those of the keys of which a job runs, is to run, or waits behind another one."""
    sql = _OUT.format(keys=", ".join(["(%s)"] * len(keys)), live=_LIVE)
    return {key for (key,) in databases.ask(using, sql, *keys)}


def lock(using: str, keys: Iterable[str]) -> None:
    """Nobody else lets in a job of these keys until the transaction ends. (SQLite has one writer.)"""
    if connections[using].vendor == "postgresql":
        databases.ask(using, _LOCK.format(keys="%s"), sorted(keys))


def let_in(using: str, keys: Iterable[str]) -> int:
    """Let in the first job of each key of which none is out; returns how many were let in.

    Race: two callers may see that none is out, and each lets in another job: between their looks one that is tried
    again came to the head of the line. So the second caller waits for the first one's commit, and looks after it.
    """
    done = 0
    wanted: set[Any] = set(keys)
    if len(wanted) > 1:
        # Most of many have one that is out.
        rows = Job.objects.using(using).filter(order_key__in=wanted, order_place=None, state__in=LIVE)
        wanted -= set(rows.order_by().values_list("order_key", flat=True))
    first_in = _FIRST_IN.get(connections[using].vendor, _first_in_anywhere)
    for key in sorted(wanted):
        queue = first_in(using, key)
        if queue is not None:
            done += 1
            transaction.on_commit(partial(ring.ring, using, {queue}), using=using, robust=True)
    return done


def _first_in_postgresql(using: str, key: str) -> str | None:
    """In one message to the server. The second statement sees what was committed until it had the lock."""
    session, connection = session_of(using), connections[using]
    name = session.literal(key)
    begin = "BEGIN; " if connection.in_atomic_block and not has_begun(connection) else ""
    lock = _LOCK.format(keys=f"ARRAY[{name}]")
    with session.wrap:
        found = session.send(f"{begin}{lock}; {_LET_IN.format(key=name, now='statement_timestamp()')}")
    return found.get_value(0, 0).decode() if found.ntuples else None


def _first_in_sqlite(using: str, key: str) -> str | None:
    # Without the write lock: most lines are empty.
    if not databases.ask(using, f"SELECT 1 FROM jobs_job WHERE order_key = %s AND {WAITS} LIMIT 1", key):
        return None
    rows = databases.ask(using, _LET_IN.format(key="%s", now=NOW_SQLITE), key, key)
    return rows[0][0] if rows else None


def _first_in_anywhere(using: str, key: str) -> str | None:
    line = Job.objects.using(using).filter(order_key=key, order_place__isnull=False, state=State.SCHEDULED)
    others = Job.objects.using(using).filter(order_key=OuterRef("order_key"), order_place=None, state__in=LIVE)
    with transaction.atomic(using=using):
        first = line.select_for_update().order_by("order_place").values_list("pk", "queue").first()
        if first is None:
            return None
        mine = line.filter(~Exists(others), pk=first[0])
        return first[1] if mine.update(state=State.READY, run_at=Now(), order_place=None) else None


def let_in_next(job: Job) -> None:
    """A run of the job is over. Without a database a tick does it later."""
    about = job.headers.get(EVENT_HEADER) or {}
    if about.get("order_key") is not None:
        using = str(job._state.db)
        with suppress(Error), store.of(using).turn():
            let_in(using, [named(job.task, about["order_key"])])


def again(jobs: QuerySet[Job], using: str) -> dict[str, Any]:
    """The columns of an ended job that runs again: with an order key it waits until no other one of the key is out."""
    found = jobs.values_list("pk", "order_key").first()
    if found is None or found[1] is None:
        return {}
    # Race: whoever hands an event of the key on lets it in at once if there is no other one.
    Relay.objects.using(using).select_for_update().filter(pk=1).first()
    transaction.on_commit(partial(let_in, using, [found[1]]), using=using, robust=True)
    return behind(found[0])


def behind(job_id: uuid.UUID) -> dict[str, Any]:
    """The columns of a job that is run once more, until it is let in: before all that wait, in the order of their ids.

    The first 64 bits of an id are the time at which it was made.
    """
    return {"state": State.SCHEDULED, "run_at": NEVER, "order_place": (job_id.int >> 64) - 2**63}


_seldom = Seldom(20)


def look_for_stuck(using: str) -> None:
    _seldom.take(using, partial(let_in_stuck, using))


def let_in_stuck(using: str) -> int:
    """Let in where nobody did, because the process died that had ended the one before."""
    return let_in(using, [key for (key,) in databases.ask(using, STUCK)])


_FIRST_IN = {"postgresql": _first_in_postgresql, "sqlite": _first_in_sqlite}
