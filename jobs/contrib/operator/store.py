"""The SQL of the operator's room: how much waits, without reading all of it, and orders to workers.

Orders are written outside of the transactions in progress: on SQLite the body that is to be killed holds the write
lock of the main file.
"""

from __future__ import annotations

import uuid
from collections import Counter, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Count, IntegerField, Q, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.expressions import RawSQL

from jobs.contrib.inspection import counts
from jobs.contrib.inspection.counts import age_of, in_line, seconds_of
from jobs.models import WAITING, Job, State
from jobs.models.columns import BY_ORDER
from jobs.models.values import scrub
from jobs.store import databases, of
from jobs.store.databases import SideDatabase
from jobs.store.postgresql import PostgreSQL
from jobs.store.sqlite import SQLite

#: The first ready job of each queue and rank.
HEADS = f"""
WITH RECURSIVE head(id) AS (
    SELECT (SELECT id FROM jobs_job WHERE state = 'ready' AND held IS NULL ORDER BY queue, {BY_ORDER} LIMIT 1)
    UNION ALL
    SELECT (
        SELECT following.id FROM jobs_job AS following
        WHERE following.state = 'ready' AND following.held IS NULL
          AND (following.queue, following.rank) > (job.queue, job.rank)
        ORDER BY following.queue, following.rank, following.run_at, following.id LIMIT 1
    )
    FROM head JOIN jobs_job AS job ON job.id = head.id AND job.state = 'ready'
)
SELECT id FROM head
"""

#: How many ready jobs share a head's queue and rank, counted up to a number.
BESIDE = """
SELECT count(*) FROM (
    SELECT 1 FROM jobs_job AS ready
    WHERE ready.state = 'ready' AND ready.held IS NULL AND ready.queue = jobs_job.queue AND ready.rank = jobs_job.rank
    ORDER BY ready.queue, ready.rank, ready.run_at, ready.id LIMIT %s
) AS counted
"""

#: How many jobs are in each state, by the last ANALYZE.
ESTIMATE = """
SELECT state, sum(round(reltuples * part))::bigint
FROM (SELECT 'jobs_job'::regclass AS relid UNION SELECT relid FROM pg_partition_tree('jobs_job')) AS tree
     JOIN pg_class ON pg_class.oid = tree.relid AND relkind = 'r'
     JOIN pg_stats ON schemaname = relnamespace::regnamespace::text AND tablename = relname,
     unnest(most_common_vals::text::text[], most_common_freqs) AS known(state, part)
WHERE attname = 'state' AND reltuples > 0
GROUP BY state
"""

#: Holds for one message, or one transaction.
UNCOMPILED = "SET LOCAL jit = off"

#: The ready jobs of a queue and rank: how many seconds the oldest has waited, and how many there are, up to a number.
Head = namedtuple("Head", "queue rank seconds number")


# What waits, and what runs


def heads(using: str, most: int | None = None) -> list[Head]:
    """The heads of all queues. It steps through the index, and never reads all ready jobs."""
    most = most or counts.MOST
    if isinstance(of(using), PostgreSQL | SQLite):
        rows = Job.objects.using(using).filter(pk__in=RawSQL(HEADS, ()), state__in=WAITING)
        rows = rows.annotate(age=age_of("run_at"), number=RawSQL(BESIDE, (most,), IntegerField()))
        with asking(using):
            found = list(rows.values_list("queue", "rank", "age", "number"))
    else:
        found = list(_heads_one_by_one(using, most))
    return [Head(queue, rank, seconds_of(age), number) for queue, rank, age, number in found]


def _heads_one_by_one(using: str, most: int) -> Iterator[tuple[Any, ...]]:
    """On MySQL a derived table cannot refer to the row of the statement around it."""
    ready = in_line(using)
    first = ready.annotate(age=age_of("run_at")).values_list("queue", "rank", "age")
    head = first.first()
    while head is not None:
        queue, rank, _ = head
        # Unsorted: it would sort all of them.
        yield *head, ready.filter(queue=queue, rank=rank).order_by()[:most].count()
        behind = Q(queue=queue, rank__gt=rank) | Q(queue__gt=queue)
        head = first.filter(behind, queue__gte=queue).first()


def scheduled(using: str) -> QuerySet[Any]:
    """The scheduled jobs, the earliest first, with ``age``: for how long they are due, negative before that."""
    return Job.objects.using(using).filter(state=State.SCHEDULED).order_by("run_at").annotate(age=age_of("run_at"))


def grouped(rows: QuerySet[Any]) -> list[tuple[Any, ...]]:
    """The values of the rows (``values_list()`` with a limit), and how often each comes; the database counts."""
    sql, params = rows.query.get_compiler(rows.db).as_sql()
    quote = connections[rows.db].ops.quote_name
    names = ", ".join(map(quote, (*rows.query.values_select, *rows.query.annotation_select)))
    return databases.ask(rows.db, f"SELECT {names}, count(*) FROM ({sql}) AS found GROUP BY {names}", *params)


def running_by_node() -> Counter[uuid.UUID]:
    running: Counter[uuid.UUID] = Counter()
    for rows in databases.each(Job.objects.filter(state=State.RUNNING)):
        running.update(dict(rows.values_list("node_id").annotate(Count("pk"))))
    return running


def estimate(using: str) -> dict[str, int]:
    """About how many jobs are in each state, if the server knows that without reading them; else nothing."""
    return dict(databases.ask(using, ESTIMATE)) if isinstance(of(using), PostgreSQL) else {}


@contextmanager
def asking(using: str) -> Iterator[None]:
    """A block of queries that could read many rows, but end early.

    PostgreSQL's planner does not see that, and would compile for a second a query that takes ten milliseconds.
    """
    connection: Any = connections[using]
    if not isinstance(of(using), PostgreSQL) or _uncompiled in connection.execute_wrappers:
        yield
    elif not connection.settings_dict["OPTIONS"].get("server_side_binding"):
        with connection.execute_wrapper(_uncompiled):
            yield
    else:
        # With server-side binding a message has only one statement.
        with transaction.atomic(using=using), connection.cursor() as cursor:
            cursor.execute(UNCOMPILED)
            yield


def _uncompiled(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    found = execute(f"{UNCOMPILED}; {sql}", params, many, context)
    # psycopg2 returns only the rows of the last statement.
    if databases.has_libpq(context["connection"]):
        context["cursor"].nextset()
    return found


# Orders

_COLUMNS = ["id", "node", "what", "lease", "text", "at"]

#: Seconds until other nodes delete an order.
FORGOTTEN = 3600.0


class Told(NamedTuple):
    #: The id of the job, or of the node itself.
    key: uuid.UUID
    what: str
    lease: int | None
    text: str
    #: Seconds.
    age: float


def give(node: uuid.UUID, what: str, text: str, job: uuid.UUID | None = None, lease: int | None = None) -> None:
    """Give a node an order. Of several orders about the node itself the last one counts.

    Parameters:
        text: the order in words: what, who gave it, and why.
        job, lease: the run to kill.
    """
    suffix = connections[databases.home()].ops.on_conflict_suffix_sql(_COLUMNS, OnConflict.UPDATE, _COLUMNS[1:], ["id"])
    sql = f"INSERT INTO jobs_order ({', '.join(_COLUMNS)}) VALUES (%s, %s, %s, %s, %s, {{now}}) {suffix}"
    with databases.side() as side:
        side.execute(sql, (job or node).hex, node.hex, what, lease, scrub(text, 4000))


def read(side: SideDatabase, node: uuid.UUID) -> list[Told]:
    found = side.execute("SELECT id, what, lease, text, {now} - at FROM jobs_order WHERE node = %s", node.hex)
    return [Told(uuid.UUID(str(key)), *rest) for key, *rest in found]


def delete(side: SideDatabase, order: Told) -> None:
    """Race: a person orders the kill of a later run of the job at this moment, perhaps on another node."""
    sql = "DELETE FROM jobs_order WHERE id = %s AND what = %s AND COALESCE(lease, 0) = %s"
    side.execute(sql, order.key.hex, order.what, order.lease or 0)


def prune(side: SideDatabase) -> None:
    """Delete orders to nodes that died before they read them."""
    side.execute("DELETE FROM jobs_order WHERE at < {now} - %s", FORGOTTEN)
