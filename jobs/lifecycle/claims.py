"""The claim: the first statement that every job costs.

Its race is decided by SKIP LOCKED: of several processes that look at the same row, one gets it, and none waits.
"""

from __future__ import annotations

import datetime
import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db import connections, transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now

from jobs import extensions
from jobs.database import databases
from jobs.database.sessions import literal, session_of
from jobs.lifecycle.completion import OWNED, owned
from jobs.models import ADDED, CLAIMABLE, Job, Node, Pause, State

#: How many a statement asks for: a few sizes, so that each is planned once.
SIZES = (1, 2, 5, 10, 20, 30, 50, 100, 200)
#: Seconds between two looks from the beginning of a queue, where a better row may have come.
LOOK = 1.0
#: A look that takes longer than this, in seconds, is repeated after so many times its own length.
SLOW_LOOK, RARELY = 0.02, 50

#: A claimed row: the job, its lease and its token.
Claimed = tuple[uuid.UUID, int, int]

#: Where a job stands in its queue.
PLACE = attrgetter("rank", "run_at", "pk")
#: What a run needs of its row; what else somebody asks for is read then.
COLUMNS = (
    "id task args kwargs options queue priority rank state run_at expires_at made_at lease token node_id "
    "backend retries crashes node_losses snoozes started_at parent_id root marker_key unique_key "
    "unique_until unique_expires_at limit_key"
).split() + ADDED

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

#: The tasks whose limits another claim heeds , or that only another worker knows.
WITHOUT = "AND task <> ALL (%(without)s)"

_RENEW = f"""
UPDATE jobs_job SET token = %(token)s, started_at = statement_timestamp()
WHERE id = %(id)s AND {OWNED} AND lease = %(lease)s AND token = %(before)s
"""


def size_of(limit: float) -> int:
    """The largest of the sizes that is not above the limit."""
    return max((size for size in SIZES if size <= limit), default=1)


def claimer(app: Any) -> Claimer:
    """What claims for one process: an extension's, if one has its own."""
    for own in extensions.through("claimer"):
        found: Claimer = own(app)
        return found
    return Claimer()


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

    @property
    def patience(self) -> float:
        """Seconds until a claim may find what it did not find before, though nobody tells of it."""
        return float("inf")

    def may_find_more(self, jobs: Sequence[Job], asked: int) -> bool:
        """Whether there is probably more, after a claim of so many found these."""
        return len(jobs) == asked

    def note_left(self, jobs: Iterable[Job]) -> None:
        """The jobs of a claim have ended, or wait again."""


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
    after, without = _AFTER if is_after else "", WITHOUT if is_without else ""
    return _CLAIM.format(queue=literal(queue), limit=limit, after=after, without=without, columns=", ".join(COLUMNS))


_READY_SQLITE = f"""
FROM jobs_job
WHERE state = 'ready' AND held IS NULL AND queue = %s AND (expires_at IS NULL OR expires_at > {databases.NOW_SQLITE})
  AND EXISTS (SELECT 1 FROM jobs_node WHERE id = %s AND dead_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = %s) AND task NOT IN ({{without}})
"""

_CLAIM_SQLITE = f"""
UPDATE jobs_job
SET state = 'running', lease = lease + 1, token = %s, node_id = %s, backend = NULL, started_at = {databases.NOW_SQLITE},
    limit_place = NULL, queue_place = NULL
WHERE id IN (SELECT id {_READY_SQLITE} ORDER BY rank, run_at, id LIMIT %s)
RETURNING {", ".join(COLUMNS)}
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
    for name in ("id", "node_id", "parent_id", "root"):
        values[name] = values[name] and uuid.UUID(values[name])
    for name in ADDED:
        if values[name] is not None:
            field: Any = Job._meta.get_field(name)
            values[name] = field.to_python(values[name])
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


def renew(job: Job) -> bool:
    """Give a claimed row a token of its own, and its claim a synchronous commit; False: it was given back meanwhile.

    Race: the companion gives back what waits behind a long body, by the token of the claim. One finds the row changed.
    The token is the claim's below zero, by which :func:`begun` knows the row.
    """
    using, token = str(job._state.db), -abs(job.token or 0)
    if connections[using].vendor == "postgresql":
        values = {"token": token, "id": job.pk, "lease": job.lease, "before": job.token}
        done = session_of(using).execute(_RENEW, values) == 1
    else:
        done = owned(job).update(token=token, started_at=Now()) == 1
    if done:
        job.token = token
    return done


def begun(runs: Sequence[Claimed]) -> list[Claimed]:
    """Which runs of dead processes may have been begun, as far as their rows tell. The others have not been.

    A process runs a claim in its order, and settles each row before it begins the next one: so the first that is left
    may have been begun. Of a claim that is not young any more it renews a row first: then it is the renewed one. What
    no row tells: whether the process died just before it began the row, or went on when a settle had failed.

    Parameters:
        runs: all that is left of each claim, in the order of the queue.
    """
    first: dict[int, Claimed] = {}
    for run in runs:
        first.setdefault(run[2], run)
    return [run for run in runs if run[2] < 0 or (run is first[run[2]] and -run[2] not in first)]
