"""Locks that nobody has held for a while are forgotten: in batches, by their indexes, within a budget."""

from __future__ import annotations

import math
import re

import pytest

from jobs.contrib.locks import locks
from jobs.contrib.pruning.prune import Prune
from jobs.store.databases import SideDatabase
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86400.0


@pytest.fixture
def side():
    side = SideDatabase()
    yield side
    side.close()


@pytest.fixture(autouse=True)
def _batches(settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 10}


def fill_locks(side, number: int, age: float = 2 * DAY) -> None:
    """Locks that nobody has held for so many seconds."""
    if side.vendor == "mysql":
        pytest.skip("they are made by a statement of PostgreSQL and SQLite")
    new_id = "gen_random_uuid()" if side.vendor == "postgresql" else "lower(hex(randomblob(16)))"
    side.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number}) "
        f"INSERT INTO jobs_lock (key, lease, token, fence, expires_at) "
        f"SELECT 'k' || %s || '-' || i, 0, {new_id}, i, {{now}} - %s + i / 1000.0 FROM n",
        str(age),
        age,
    )


def locks_left(side) -> int:
    return side.execute("SELECT count(*) FROM jobs_lock")[0][0]


@pytest.mark.database
def test_all_locks_that_nobody_holds_go_batch_by_batch_within_a_budget(side):
    fill_locks(side, 35)
    fill_locks(side, 3, age=0.0)
    locks.prune(side, 0.0)
    assert locks_left(side) == 28, "one batch"
    Prune().run_once()
    assert locks_left(side) == 3


@pytest.mark.database
def test_locks_of_runs_that_last_for_days_keep_no_other_from_going(side):
    fill_locks(side, 25, age=3 * DAY)
    job = make("running", lease=1)
    side.execute("UPDATE jobs_lock SET job = %s, lease = 1", job.pk.hex)
    fill_locks(side, 5)
    Prune().run_once()
    assert locks_left(side) == 25


@pytest.mark.core
@pytest.mark.database
def test_locks_are_pruned_by_their_indexes(side, settings):
    """A scan for each of them took 18 seconds at 400,000."""
    settings.JOBS = {**settings.JOBS, "BATCH": 500}
    fill_locks(side, 100_000, age=0.0)
    fill_locks(side, 600)
    side.execute("ANALYZE jobs_lock")
    asked = []

    def note(execute, sql, params, many, context):
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with side.cursor() as cursor, cursor.db.execute_wrapper(note):
        locks.prune(side, math.inf)
    assert locks_left(side) == 100_000
    assert len(asked) == 4, "two for each batch"
    for sql, params in asked:
        explain = "EXPLAIN" if side.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        with side.cursor() as cursor:
            cursor.execute(f"{explain} {sql}", params)
            text = "\n".join(str(row) for row in cursor.fetchall())
        assert "Seq Scan" not in text, text
        assert not re.search("SCAN jobs_lock(?! USING)", text), text
        assert not re.search("Sort|TEMP B-TREE", text), text
