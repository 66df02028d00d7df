"""What a job costs PostgreSQL from its call until it is pruned, by where it goes when it ends.

``python -m benchmarks.ended``: bytes of WAL, dead rows and buffers a job, and the plans of statements beside 30 days of
history. It makes the table anew for each layout, and executes the statements of ``jobs/store/postgresql.py``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.helpers import servers

#: Jobs that come before those that are counted; that come at once; that a claim takes; between two times of VACUUM.
WARM_UP, ROUND, CLAIM, VACUUM = 2000, 1000, 10, 4000
#: Days of history beside the day that is; days made ahead.
DAYS, AHEAD = 30, 7
#: How often a statement is planned and executed.
TIMES = 300

#: The states of what runs or may run, by which a partition is known.
LIVES = "state IN ('ready', 'running')"
#: That a job runs: without the name of an index that has all that run.
RUNS = "state || '' = 'running'"

#: What ``migrate`` makes: the table that is copied, and its indexes.
TABLE = "public.jobs_job"
#: Indexes that only what lives needs, and only what has ended.
LIVE_ONLY = (
    "scheduled",
    "ready",
    "line",
    "held",
    "expires",
    "running",
    "awaiting",
    "order",
    "limit_slot",
    "queue_slot",
)
ENDED_ONLY = ("finished", "unsuccessful", "unique", "made")
PHASES = ("call", "claim", "completion", "prune", "vacuum")


def copy(name: str, without: tuple[str, ...] = (), options: str = "") -> Iterator[str]:
    """A table as the migrations make it, without some of its indexes and constraints."""
    yield f"CREATE TABLE {name} (LIKE {TABLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS){options}"
    for index, definition in INDEXES.items():
        if index.removeprefix("jobs_job_") not in without:
            sql = re.sub(r"INDEX \S+ ON \S+", f"INDEX {name}_{index} ON {name}", definition)
            yield sql


def parent(key: str, name: str = "jobs_job", options: str = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS") -> str:
    return f"CREATE TABLE {name} (LIKE {TABLE} {options}) PARTITION BY {key}"


def days() -> Iterator[tuple[int, datetime.datetime, datetime.datetime]]:
    today = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for number in range(-DAYS, AHEAD + 1):
        yield number + DAYS, today + datetime.timedelta(number), today + datetime.timedelta(number + 1)


def one_table(options: str = "") -> list[str]:
    return list(copy("jobs_job", options=options))


def by_end() -> list[str]:
    """What lives has no ``finished_at``, and is in the default partition; what ended is in that of its day."""
    made = [parent("RANGE (finished_at)"), *copy("live", ENDED_ONLY[:2])]
    for number, begin, end in days():
        made += copy(f"day{number}", LIVE_ONLY)
        made.append(f"ALTER TABLE jobs_job ATTACH PARTITION day{number} FOR VALUES FROM ('{begin}') TO ('{end}')")
    return [*made, "ALTER TABLE jobs_job ATTACH PARTITION live DEFAULT"]


def by_state(indexes: tuple[str, ...] = LIVE_ONLY, options: str = "") -> list[str]:
    """What lives, what failed, and the rest of what ended by the day of its call, which its id says."""
    from jobs.models.fields import first_id

    made = [
        parent("RANGE (finished_at)"),
        parent("LIST (state)", "ended"),
        parent("RANGE (id)", "done"),
        *copy("live", (), options),
        *copy("failed", LIVE_ONLY),
        *copy("rest", LIVE_ONLY),
        "ALTER TABLE ended ATTACH PARTITION failed FOR VALUES IN ('failed')",
        "ALTER TABLE ended ATTACH PARTITION done FOR VALUES IN ('succeeded', 'cancelled')",
        "ALTER TABLE done ATTACH PARTITION rest DEFAULT",
        "ALTER TABLE jobs_job ATTACH PARTITION ended FOR VALUES FROM (MINVALUE) TO (MAXVALUE)",
        "ALTER TABLE jobs_job ATTACH PARTITION live DEFAULT",
    ]
    for number, begin, end in days():
        made += copy(f"day{number}", indexes)
        limits = f"FROM ('{first_id(begin)}') TO ('{first_id(end)}')"
        made.append(f"ALTER TABLE done ATTACH PARTITION day{number} FOR VALUES {limits}")
    return made


def two_tables() -> list[str]:
    made = [*copy("jobs_job", ENDED_ONLY[:2]), parent("RANGE (finished_at)", "history")]
    for number, begin, end in days():
        made += copy(f"day{number}", LIVE_ONLY)
        made.append(f"ALTER TABLE history ATTACH PARTITION day{number} FOR VALUES FROM ('{begin}') TO ('{end}')")
    return made


def receipts() -> list[str]:
    """Of a success only what nobody could know otherwise is kept: it can not be run again."""
    kept = "id, task, queue, state, started_at, finished_at, lease, node_id, result, options, root"
    made = [*copy("jobs_job", ENDED_ONLY[:2])]
    made.append(f"CREATE TABLE history AS SELECT {kept} FROM jobs_job")
    return [*made, "CREATE UNIQUE INDEX ON history (id)", "CREATE INDEX ON history (finished_at)"]


#: The same as ``postgresql.SUCCEED``, where the row moves by hand.
MOVE = """
WITH gone AS (
    DELETE FROM jobs_job WHERE id = {2} AND state || '' = 'running' AND lease = {3} AND token = {4}
      AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {2})
    RETURNING *
), done AS (
    INSERT INTO history (%(columns)s) SELECT %(values)s FROM gone RETURNING 1
)
SELECT 1 / count(*) FROM done
"""
WRITTEN = {
    "state": "'succeeded'",
    "finished_at": "statement_timestamp()",
    "result": "{0}",
    "error": "NULL",
    "started_at": "statement_timestamp() - {1} * interval '1 second'",
}
RECEIPT = ("id", "task", "queue", "state", "started_at", "finished_at", "lease", "node_id", "result", "options", "root")


def moving(columns: tuple[str, ...] | list[str]) -> str:
    return MOVE % {"columns": ", ".join(columns), "values": ", ".join(WRITTEN.get(name, name) for name in columns)}


@dataclass(frozen=True)
class Layout:
    name: str
    make: Callable[[], list[str]]
    #: The statement of the completion; "": that of the store.
    complete: Callable[[], str] = lambda: ""
    #: What the statements on what lives say beside what the store's do.
    live: str = ""
    #: Of which table what ended long ago is deleted; None: days are dropped.
    pruned: str | None = None


INDEXES: dict[str, str] = {}
LAYOUTS = (
    Layout("one table", one_table, pruned="jobs_job"),
    Layout("one table, fillfactor 50", lambda: one_table(" WITH (fillfactor = 50)"), pruned="jobs_job"),
    Layout("partitions by finished_at", by_end, live="finished_at IS NULL"),
    Layout("partitions by state and id", by_state, live=LIVES),
    Layout("the same, no index by finished_at", lambda: by_state((*LIVE_ONLY, "finished")), live=LIVES),
    Layout(
        "the same, fillfactor 50", lambda: by_state((*LIVE_ONLY, "finished"), " WITH (fillfactor = 50)"), live=LIVES
    ),
    Layout("two tables", two_tables, lambda: moving(columns())),
    Layout("two tables, history is a receipt", receipts, lambda: moving(RECEIPT), pruned=None),
)


def columns() -> list[str]:
    from jobs.models import Job

    return [str(field.column) for field in Job._meta.concrete_fields]


@dataclass
class Cost:
    wal: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    buffers: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    dead: float = 0.0
    hot: float = 0.0
    #: KiB of the table of what lives with its indexes, and of what ended, a job.
    live_size: float = 0.0


class Database:
    def __init__(self, url: str) -> None:
        import psycopg

        # The counts of a session are told when it is idle; another one reads them.
        self.work, self.look = psycopg.connect(url, autocommit=True), psycopg.connect(url, autocommit=True)
        self.work.prepare_threshold = self.look.prepare_threshold = None
        self.node = uuid.uuid4()
        self.run(
            "INSERT INTO public.jobs_node (id, hostname, pid, queues, tasks, started_at, signed_off) "
            f"VALUES ('{self.node}', 'w@m', 1, '[]', '[]', now(), false)"
        )

    def run(self, sql: str, *values: Any) -> list[Any]:
        cursor = self.work.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []

    def counts(self) -> tuple[int, int, int, int]:
        """Bytes of WAL; buffers, dead row versions and updates within their page and without index entries so far."""
        self.run("SELECT pg_stat_force_next_flush()")
        self.run("SELECT 1")
        sql = """
            SELECT pg_current_wal_insert_lsn() - '0/0',
                (SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))
                 FROM pg_statio_user_tables WHERE schemaname = 'layout'),
                (SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = 'layout'),
                (SELECT sum(n_tup_hot_upd) FROM pg_stat_user_tables WHERE schemaname = 'layout')"""
        return tuple(int(value or 0) for value in self.look.execute(sql).fetchone())  # type: ignore[union-attr,return-value]

    def make(self, layout: Layout) -> None:
        self.run("DROP SCHEMA IF EXISTS layout CASCADE")
        self.run("CREATE SCHEMA layout")
        self.run("SET search_path = layout, public")
        for statement in layout.make():
            self.run(statement)

    def leaves(self) -> list[str]:
        sql = "SELECT relname FROM pg_class WHERE relnamespace = 'layout'::regnamespace AND relkind = 'r'"
        return [name for (name,) in self.run(sql)]


def completion(layout: Layout) -> str:
    from jobs.store import postgresql

    return layout.complete() or with_live(postgresql.SUCCEED, layout)


def with_live(sql: str, layout: Layout) -> str:
    """The statement, with the condition by which the layout knows the partition of what lives."""
    from jobs.store import postgresql

    sql = sql.replace(postgresql.OWNED, RUNS).replace("WHERE state = 'ready' AND id = ANY", "WHERE id = ANY")
    if not layout.live:
        return sql
    return re.sub(r"WHERE (?=id = |state = 'ready')", f"WHERE {layout.live} AND ", sql)


def measure(database: Database, layout: Layout, jobs: int) -> Cost:
    from jobs.models.fields import uuid7
    from jobs.store import postgresql

    database.make(layout)
    run, cost = database.run, Cost()
    claim = with_live(postgresql.claim_sql("celery", CLAIM, False, False), layout)
    names = "json, float8, uuid, int, bigint"
    places = [f"${number}" for number in range(1, 6)]
    run("DEALLOCATE ALL")
    run(f"PREPARE complete ({names}) AS " + completion(layout).format(*places))

    def phase(name: str, work: Callable[[], Any], is_counted: bool, jobs: int = jobs) -> Any:
        before = database.counts()
        found = work()
        after = database.counts()
        if is_counted:
            cost.wal[name] += (after[0] - before[0]) / jobs
            cost.buffers[name] += (after[1] - before[1]) / jobs
            cost.dead += (after[2] - before[2]) / jobs
            cost.hot += (after[3] - before[3]) / jobs
        return found

    def call() -> None:
        for number in range(ROUND):
            sql = "INSERT INTO jobs_job (id, task, queue, args) VALUES (%s, %s, %s, %s)"
            run(sql, uuid7(), "shop.tasks.send_welcome_email", "celery", f"[{100000 + number}]")

    def claimed() -> list[Any]:
        values = {"node": database.node, "token": time.monotonic_ns(), "backend": 1}
        found = []
        for _ in range(ROUND // CLAIM):
            found += database.work.execute(claim, values).fetchall()
        assert len(found) == ROUND, len(found)
        return found

    def complete(rows: list[Any]) -> None:
        at = {name: place for place, name in enumerate(postgresql.named(postgresql.Part.CLAIM))}
        for row in rows:
            run(f"EXECUTE complete (NULL, 0.01, '{row[at['id']]}', {row[at['lease']]}, {row[at['token']]})")

    def vacuum() -> None:
        # Not the history: nothing of it is dead, and dropping it takes no VACUUM.
        for name in database.leaves():
            if layout.pruned or not name.startswith("day"):
                run(f"VACUUM (INDEX_CLEANUP ON) {name}")

    def prune() -> None:
        if layout.pruned:
            sql = (
                f"SELECT id FROM {layout.pruned} WHERE finished_at <= now() AND state = 'succeeded' "
                "ORDER BY finished_at, id LIMIT 2000"
            )
            while ids := [key for (key,) in run(sql)]:
                run(f"SELECT id FROM {layout.pruned} WHERE id = ANY(%s) FOR UPDATE SKIP LOCKED", ids)
                run(f"DELETE FROM {layout.pruned} WHERE id = ANY(%s)", ids)
            return
        for name in database.leaves():
            if name.startswith("day") or name == "history":
                run(f"TRUNCATE {name}")

    for number in range(0, WARM_UP + jobs, ROUND):
        if number == WARM_UP:
            vacuum()
            run("CHECKPOINT")
        is_counted = number >= WARM_UP
        phase("call", call, is_counted)
        rows = phase("claim", claimed, is_counted)
        phase("completion", lambda rows=rows: complete(rows), is_counted)
        if (number + ROUND) % VACUUM == 0:
            phase("vacuum", vacuum, is_counted)
    live = "live" if "live" in database.leaves() else "jobs_job"
    cost.live_size = run(f"SELECT pg_total_relation_size('{live}')")[0][0] / 1024
    phase("prune", prune, True, jobs + WARM_UP)
    phase("vacuum", vacuum, True, jobs + WARM_UP)
    return cost


def plans(database: Database, layout: Layout) -> dict[str, tuple[float, float, int]]:
    """Milliseconds to plan and to execute, and buffers, of each statement: with one job that runs."""
    from jobs.models.fields import uuid7
    from jobs.store import postgresql

    database.make(layout)
    run = database.run
    insert = (
        "INSERT INTO jobs_job (id, task, queue, args, state, lease, token, node_id, started_at) SELECT "
        "%s::uuid, 't', 'celery', '[]', 'running', 1, 1, %s, now()"
    )
    many = "SELECT gen_random_uuid(), 't', 'celery', '[]' FROM generate_series(1, 2000)"
    key = uuid7()
    run(insert, key, database.node)
    run(f"INSERT INTO jobs_job (id, task, queue, args) {many}")
    run("ANALYZE")
    words = {"node": f"'{database.node}'::uuid", "token": 1, "backend": 1}
    claim = postgresql.claim_sql("celery", CLAIM, False, False) % words
    given = ("NULL", "0.01", f"'{key}'", "1", "1")
    asked = {
        "claim": with_live(claim, layout),
        "claim that does not say that it is of what lives": with_live(claim, replace(layout, live="")),
        "completion": completion(layout).format(*given),
        "completion that does not say it": completion(replace(layout, live="")).format(*given),
        "a job by its id": f"SELECT * FROM jobs_job WHERE id = '{key}'",
        "a live job by its id": f"SELECT * FROM jobs_job WHERE id = '{key}' AND {layout.live or RUNS}",
    }
    found = {}
    for name, sql in asked.items():
        planned, executed, buffers = [], [], 0
        for _ in range(TIMES):
            with database.work.transaction(force_rollback=True):
                [[[plan]]] = run("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) " + sql)
            planned.append(plan["Planning Time"])
            executed.append(plan["Execution Time"])
            buffers = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        found[name] = (statistics.median(planned), statistics.median(executed), buffers)
    return found


def write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--only", default="", help="layouts whose name has this in it")
    parser.add_argument("--plans", action="store_true", help="only the plans")
    options = parser.parse_args()
    server = servers.Postgres(settings=("fsync=off", "autovacuum=off", "shared_buffers=256MB", "max_wal_size=8GB"))
    try:
        os.environ |= {"DATABASE_URL": server.url, "CELERY_BROKER_URL": "jobs://", "CACHE_URL": ""}
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        database = Database(server.url)
        sql = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('jobs_job', 'jobs_job_live')"
        INDEXES.update(database.run(sql))
        chosen = [layout for layout in LAYOUTS if options.only in layout.name]
        phases = " | ".join(PHASES)
        write(
            f"| layout | WAL | with full pages | {phases} | dead rows | HOT | buffers | {phases} | KiB of what lives |"
        )
        for layout in chosen if not options.plans else ():
            costs = []
            for setting in ("off", "on"):
                database.run(f"ALTER SYSTEM SET full_page_writes = {setting}")
                database.run("SELECT pg_reload_conf()")
                time.sleep(0.5)
                costs.append(measure(database, layout, options.jobs))
            plain, full = costs
            each = " | ".join(f"{plain.wal[name]:.0f}" for name in PHASES)
            buffers = " | ".join(f"{plain.buffers[name]:.1f}" for name in PHASES)
            sums = [f"{sum(cost.wal.values()):,.0f}" for cost in (plain, full)]
            rows = f"{plain.dead:.1f} | {plain.hot:.1f} | {sum(plain.buffers.values()):.0f} | {buffers}"
            write(f"| {layout.name} | {' | '.join(sums)} | {each} | {rows} | {plain.live_size:,.0f} |")
        for layout in chosen:
            if "two tables" in layout.name:
                continue
            write(layout.name)
            for name, (planned, executed, count) in plans(database, layout).items():
                write(f"  | {name} | {planned:.2f} | {executed:.2f} | {count} |")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
