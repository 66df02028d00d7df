"""A look begins where the last one ended, while looks from the start are slow."""

from __future__ import annotations

import datetime
import time
import uuid

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from jobs.contrib.short_looks import claims
from jobs.contrib.short_looks import clock as looks
from jobs.contrib.short_looks.claims import ShortClaimer
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import clock
from jobs.models import Job
from jobs.store import postgresql
from tests import tasks
from tests.helpers import driver
from tests.helpers.concurrency import open_transaction
from tests.helpers.plans import statements_of
from tests.helpers.rows import fill, make
from tests.helpers.servers import fair, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUE = "celery"


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


def claim(limit: int) -> list[Job]:
    return ShortClaimer().claim("default", QUEUE, worker_state.node, limit)


def keys(jobs: list[Job]) -> list[uuid.UUID]:
    return [job.pk for job in jobs]


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def on_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer, and is claimed from the start of the queue")


# The place in the queue


def buffers(claimer: ShortClaimer) -> int:
    """How many pages a claim of one row reads."""
    after = claimer._after.get(("default", QUEUE))
    values = {"node": worker_state.node, "token": 1, "backend": 1}
    if after is not None:
        values |= dict(zip(("rank", "run_at", "id"), after, strict=True))
    sql = postgresql.claim_sql(QUEUE, 1, after is not None, False)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", values)
        plan = cursor.fetchone()[0][0]["Plan"]
        transaction.set_rollback(True)
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_a_claim_does_not_step_over_what_was_claimed_before(node, held_open):
    tasks.noop.delay_many([(number,) for number in range(10_500)], queue=QUEUE)
    claimer = ShortClaimer()
    for _ in range(50):
        assert len(claimer.claim("default", QUEUE, worker_state.node, 200)) == 200
    assert buffers(claimer) < 30
    assert buffers(ShortClaimer()) > 200, "from the start it would"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_better_row_that_comes_later_is_found_within_a_second(node, request, is_held):
    if is_held:
        request.getfixturevalue("held_open")
    for number in range(200):
        make(age=100 - number / 10)
    claimer = ShortClaimer()
    assert claimer.claim("default", QUEUE, worker_state.node, 1)
    better = [make(rank=-1), make(age=1000)]
    found: set[uuid.UUID] = set()
    began = fair()
    while not found >= set(keys(better)):
        found |= set(keys(claimer.claim("default", QUEUE, worker_state.node, 1)))
        time.sleep(0.02)
        assert fair() - began < claims.LOOK + 0.5, "it starves behind a stream of others"
    assert claims.LOOK <= 1.0


def test_an_empty_look_from_the_place_on_goes_back_to_the_start(node, monkeypatch):
    monkeypatch.setattr(claims, "LOOK", 3600.0)
    make(age=11), make(age=10)
    claimer = ShortClaimer()
    for _ in range(2):
        assert claimer.claim("default", QUEUE, worker_state.node, 1)
    before = make(age=20)
    assert keys(claimer.claim("default", QUEUE, worker_state.node, 1)) == [before.pk]


def test_after_a_job_that_came_alone_one_look_finds_nothing(node, monkeypatch):
    """A place behind it would make two of it: nothing stands there."""
    on_postgresql()
    kind = driver.session_class()
    asked, fetch = [], kind.fetch
    monkeypatch.setattr(kind, "fetch", lambda *args: (asked.append(args[1]), fetch(*args))[1])
    make()
    claimer = ShortClaimer()
    assert claimer.claim("default", QUEUE, worker_state.node, 1)
    assert not claimer.claim("default", QUEUE, worker_state.node, 1)
    assert len(asked) == 2


def test_a_look_that_takes_long_is_taken_rarely(node, monkeypatch):
    on_postgresql()
    monkeypatch.setattr(claims, "SLOW_LOOK", -1.0)
    monkeypatch.setattr(claims, "RARELY", 1e9)
    rows = [make(age=101 - number) for number in range(4)]
    claimer = ShortClaimer()
    assert keys(claimer.claim("default", QUEUE, worker_state.node, 1)) == [rows.pop(0).pk]
    assert keys(claimer.claim("default", QUEUE, worker_state.node, 1)) == [rows[0].pk]
    better = make(rank=-1)
    assert keys(claimer.claim("default", QUEUE, worker_state.node, 2)) == keys(rows[1:])
    assert keys(claimer.claim("default", QUEUE, worker_state.node, 2)) == [better.pk], (
        "nothing was left behind the place"
    )


# The clock, beside the same transaction


def pages(action) -> int:
    """How many pages are read for what an action asks of jobs."""
    read = 0
    for sql in statements_of(action):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.replace('%', '%%')}", [])
            plan = cursor.fetchone()[0][0]["Plan"]
            transaction.set_rollback(True)
        read += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return read


@pytest.fixture
def cursors(monkeypatch):
    """All looks from the start take too long."""
    monkeypatch.setattr(looks, "SLOW_LOOK", -1.0)
    monkeypatch.setattr(looks, "RARELY", 1e9)
    worker_state.queues = [QUEUE, "mail"]
    looks._positions.clear()


def is_ready() -> bool:
    return looks.has_ready("default", [QUEUE, "mail"])


def test_the_clock_does_not_step_over_what_was_due_before(node, held_open, cursors):
    fill("scheduled", 10_000)
    Job.objects.filter(pk__in=Job.objects.values("pk")[:5000]).update(expires_at=F("run_at"))
    while any(clock.tick().values()):
        pass
    while jobs := claim(200):
        transitions_of(jobs)
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded", "cancelled"}
    looks._positions.clear()
    assert pages(clock.tick) > 5000, "from the start it does"
    assert pages(is_ready) > 250
    looks._positions.clear()
    clock.tick(), is_ready(), clock.tick(), is_ready()
    assert pages(clock.tick) < 250
    assert pages(is_ready) < 150
    assert pages(clock.tick) < 400
    assert pages(is_ready) < 200
    # What comes due now is seen at once, and what it costs is not that of all before.
    make("scheduled", age=1), make("scheduled", age=-60, expires_at=ago(1)), make(rank=-3)
    assert is_ready()
    done: list[dict[str, int]] = []
    assert pages(lambda: done.append(clock.tick())) < 1000
    assert (done[0]["due"], done[0]["expired"]) == (1, 1)


def transitions_of(jobs: list[Job]) -> None:
    """They succeed."""
    Job.objects.filter(pk__in=keys(jobs)).update(state="succeeded", finished_at=Now())


def test_a_job_that_is_due_before_the_place_is_found_by_a_look_from_the_start(node, cursors, monkeypatch):
    on_postgresql()
    monkeypatch.setattr(looks, "LONGEST_LOOK", 2.0)
    clock.tick(), clock.tick()
    rows = [make("scheduled", age=3600), make("scheduled", age=-60, expires_at=ago(3600))]
    began = time.monotonic()
    done = clock.tick()
    # On a busy machine that was the look from the start.
    assert (done["due"], done["expired"]) == (0, 0) or time.monotonic() - began > 1
    wait_for(lambda: clock.tick() and {state(job) for job in rows} == {"ready", "cancelled"}, 10, "they are found")


def test_the_look_from_the_start_is_never_far_off():
    assert looks.LONGEST_LOOK <= 30.0


def test_a_look_that_takes_long_once_changes_nothing(node, monkeypatch):
    """It may have waited for the machine."""
    on_postgresql()
    worker_state.queues = [QUEUE]
    looks._positions.clear()
    monkeypatch.setattr(looks, "SLOW_LOOK", 3600.0)
    clock.tick()
    monkeypatch.setattr(looks, "SLOW_LOOK", -1.0)
    looks._positions["default", "all"].took = -2.0
    clock.tick()
    job = make("scheduled", age=3600)
    assert clock.tick()["due"] == 1
    assert state(job) == "ready"


def test_a_locked_job_keeps_the_place_of_the_clock(node, cursors):
    on_postgresql()
    clock.tick(), clock.tick()
    job = make("scheduled", age=1)
    with open_transaction(lambda: Job.objects.select_for_update().get(pk=job.pk)):
        clock.tick()
        looks._positions["default", "all"].move(timezone.now() + datetime.timedelta(hours=1), job.run_at, None)
        assert clock.tick()["due"] == 0
    assert clock.tick()["due"] == 1
