"""The database ends connections, restarts, is away, is full, refuses, or is held up by others."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F, Max

from jobs.conf import conf
from jobs.maintenance.relay import Relay
from jobs.models import Job, Node
from jobs.settlement import RECONNECT
from tests import tasks
from tests.faults.database import AWAY
from tests.faults.guards import guard
from tests.faults.ledger import LOST_CHILD, LOST_WORKER, WORK
from tests.faults.manner import again
from tests.faults.proxy import Proxy
from tests.faults.worker import Worker, workers
from tests.models import Effect
from tests.servers import wait_for

#: Seconds that a database is away: 40 with the clocks that users get.
OUTAGE = 2.7 * conf().DEAD_AFTER


def assert_nobody_is_blamed() -> None:
    """No node was declared dead, no body is taken for a killer, and no job came near its end."""
    assert not Node.objects.filter(dead_at__isnull=False, signed_off=False).exists()
    assert not Job.objects.filter(crashes__gt=0).exists()
    assert not Job.objects.filter(node_losses__gte=conf().MAX_NODE_LOSSES / 2).exists()


@guard("jobs/execution.py", "databases.is_lost(exc, run.using)", "False")
def test_all_connections_terminated_once_a_second(ledger, database):
    """``pg_terminate_backend``, as by an administrator or a pooler, in whatever statement they are.

    Guard: a body that lost its connection is handed back, and did not fail (``databases.is_lost``).
    """
    ledger.enqueue(200, tasks.works)
    with workers(2):
        with ledger.load(100, forgive=AWAY):
            for _ in range(6):
                ledger.wait_effects(20)
                assert database.end_connections() > 2
                time.sleep(1)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()


@guard("jobs/execution.py", "databases.is_lost(exc, run.using)", "False")
@pytest.mark.quick
def test_database_killed_and_restarted_under_load(ledger, database):
    """As with ``pg_ctl restart -m immediate``: all transactions are lost, in the middle or inside their COMMIT.

    Guard: a body that lost its connection is handed back, and did not fail (``databases.is_lost``).
    """
    ledger.enqueue(200, tasks.works)
    with workers(2):
        with ledger.load(100, forgive=AWAY):
            ledger.wait_effects(50)
            database.kill()
            database.start()
            ledger.wait_effects(50)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()


@guard("jobs/maintenance/rescue.py", "self._seen.clear()", "pass", case="killed")
@pytest.mark.parametrize("how", ["killed", again("paused")])
def test_database_away_for_longer_than_it_takes_to_be_dead(ledger, database, how):
    """Nobody could beat, and one finds the database again later than the others; a worker was started meanwhile.

    Guard: a rescuer that was away itself gives everybody the full time again (``rescue.Rescue._silent``). When it
    hangs for longer than twice ``DEAD_AFTER`` it starts again, and knows nothing of the time before.
    """
    ledger.enqueue(2, tasks.slow, kwargs={"seconds": OUTAGE / 2})
    ledger.enqueue(200, tasks.works)
    with Proxy(database.url) as link, Worker(DATABASE_URL=link.url, wait=False), Worker():
        ledger.wait_effects(20)
        link.half_open()
        (database.kill if how == "killed" else database.pause)()
        with Worker(wait=False) as new:
            with ledger.load(100, forgive=AWAY):
                time.sleep(OUTAGE)
                (database.start if how == "killed" else database.resume)()
                time.sleep(conf().DEAD_AFTER / 3)
                link.restore()
            ledger.check(within=10 + WORK)
            assert_nobody_is_blamed()
            assert Node.objects.filter(pid=new.process.pid).exists()


@guard("jobs/execution.py", "databases.is_lost(exc, run.using)", "False")
def test_idle_connections_exhaust_the_server(ledger, database):
    """Everybody loses the connection he has, and cannot open another: "sorry, too many clients already".

    Guard: a body that lost its connection is handed back, and did not fail (``databases.is_lost``).
    """
    ledger.enqueue(200, tasks.works)
    with workers(2):
        with ledger.load(100, forgive=AWAY):
            ledger.wait_effects(20)
            with database.exhausted():
                time.sleep(OUTAGE)
        ledger.check(within=LOST_CHILD)
        assert not Job.objects.filter(crashes__gt=0).exists()


@guard("jobs/lifecycle.py", "CASE WHEN pg_backend_pid() = %s", "CASE WHEN %s <> 0")
def test_dead_worker_behind_a_pooler(ledger, database, tmp_path):
    """The server processes that it used serve others by now, who are not to be hurt.

    Guard: behind a pooler no server process is recorded (``lifecycle._claimable``).
    """
    gate = tmp_path / "gate"
    with database.pooled() as url, workers(1, DATABASE_URL=url), database.busy(url, clients=5):
        with Worker(DATABASE_URL=url) as doomed:
            for number in range(4):
                job = tasks.waits.delay(f"long {number}", str(tmp_path / f"started {number}"), str(gate))
                ledger.note(f"long {number}", job)
            wait_for(lambda: Job.objects.filter(state="running", node=doomed.node).count() == 2, 30, "it is busy")
            doomed.kill()
            gate.touch()
        ledger.enqueue(300)
        ledger.check(within=LOST_WORKER)


@guard(
    "jobs/execution.py",
    "if is_conflict := run.task.atomic and _is_conflict(_what_struck(exc)):",
    "if is_conflict := False:",
)
def test_deadlocks(ledger):
    """Two kinds of bodies lock the same two rows in opposite order, again and again.

    Guard: a body runs again whose transaction the server ended in favour of another one (``execution._is_conflict``).
    """
    one, other, *_ = ledger.enqueue(280)
    for _ in range(4):
        ledger.enqueue(3, tasks.locks_two, kwargs={"first": one, "second": other})
        ledger.enqueue(3, tasks.locks_two, kwargs={"first": other, "second": one})
    with workers(2, PGOPTIONS="-c deadlock_timeout=50ms") as crew:
        ledger.check(within=LOST_CHILD)
        assert any("deadlock detected" in worker.text() for worker in crew)
        assert_nobody_is_blamed()


@guard(
    "jobs/execution.py",
    "if is_conflict := run.task.atomic and _is_conflict(_what_struck(exc)):",
    "if is_conflict := False:",
)
@pytest.mark.parametrize("level", [again("repeatable read"), "serializable"])
def test_serialization_failures(ledger, level):
    """Bodies that read what others write; all transactions of the workers, and not only theirs, are on a higher level.

    Guard: a body runs again whose transaction the server ended in favour of another one (``execution._is_conflict``).
    """
    ledger.enqueue(60, tasks.counts_and_adds)
    ledger.enqueue(250)
    with workers(2, PGOPTIONS="-c default_transaction_isolation=" + level.replace(" ", "\\ ")) as crew:
        ledger.check(within=LOST_CHILD)
        assert any("could not serialize access" in worker.text() for worker in crew)
        assert_nobody_is_blamed()


@guard(
    "jobs/migrations/0001_initial.py",
    "models.Index(condition=models.Q(('state', 'ready')), fields=['dispatched_at'], name='jobs_job_ready'), ",
)
def test_a_transaction_left_idle_in_another_session(ledger, database):
    """As long as it is open nothing can be vacuumed that jobs leave behind: here three versions of 20,000 rows.

    Guard: the rows that live have indexes of their own (``models.Job``), so a tick of the relay stays cheap, and what
    is scheduled on time.
    """
    with database.idle_transaction(), workers(2):
        ledger.enqueue(1000)
        ledger.check(within=2 * WORK)
        pass_through(20_000)
        ledger.enqueue(10, countdown=2)
        ledger.check(within=WORK)
        late = Job.objects.filter(run_at__gt=F("created_at")).annotate(late=F("started_at") - F("run_at"))
        assert late.aggregate(most=Max("late"))["most"] < timedelta(seconds=2)
        assert min(seconds(Relay().run_once) for _ in range(5)) < 0.1


@guard("jobs/databases.py", "rows.select_for_update(skip_locked=True)", "rows.select_for_update()")
def test_a_transaction_left_idle_that_holds_jobs(ledger, database):
    """They have to wait for it, be they due, expired, asked to end or old; nobody else has.

    Guard: the relay, and all that goes through many rows, passes over those that are locked (``databases.free``).
    """
    held = ledger.enqueue(20, countdown=3)
    with workers(2):
        with database.holding(list(Job.objects.values_list("pk", flat=True))):
            ledger.enqueue(100)
            ledger.enqueue(200, countdown=4)
            wait_for(lambda: Effect.objects.count() >= 300, 2 * WORK, "the others ran")
            assert not Effect.objects.filter(key__in=held).exists()
        ledger.check(within=WORK)


@guard("jobs/execution.py", "(isinstance(exc, Error) and not entered)", "False")
@pytest.mark.databases("sqlite")
def test_sqlite_locked_by_another_writer(ledger, database):
    """For a moment in which a body cannot begin, and for longer than a worker waits for its claim or for its end.

    Guard: no lock for the transaction of the body is no failure of the job (``execution._attempt``).
    """
    ledger.enqueue(300)
    impatient = {"JOBS_TEST_SQLITE_TIMEOUT": "0.2"}
    with Worker(sync="after_claim=pause", **impatient) as worker, Worker(**impatient):
        with ledger.load(50):
            worker.reached("after_claim")
            with database.locked():
                worker.go("after_claim")
                worker.said("not settled yet")
            ledger.wait_effects(20)
            with database.locked():
                time.sleep(len(RECONNECT) * 0.2 + sum(RECONNECT) + 1)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()


@pytest.mark.databases("sqlite")
@guard("jobs/databases.py", 'getattr(connection.connection, "in_transaction", False)', "False")
def test_soft_time_limit_while_sqlite_is_locked(ledger, database):
    """A body that waits for its BEGIN gets the exception together with the lock, which goes back at once.

    Guard: a connection in a transaction of which Django does not know is dropped (``databases.tidy``).
    """
    with Worker(sync="after_claim=pause") as worker:
        late = ledger.enqueue(1, tasks.sleeps_softly, soft_time_limit=3)
        worker.reached("after_claim")
        with database.locked():
            worker.go("after_claim")
            worker.said("Soft time limit")
            # The signal follows the line in the log.
            time.sleep(0.3)
        ledger.enqueue(300)
        ledger.check(within=LOST_CHILD, otherwise=dict.fromkeys(late, "failed"))


def pass_through(jobs: int) -> None:
    """Let rows pass through all states that a job has, and go."""
    columns = [field.column for field in Job._meta.concrete_fields if field.column != "id"]
    values = ", ".join({"state": "'ready'", "finished_at": "NULL"}.get(column, column) for column in columns)
    with connection.cursor() as cursor:
        for _ in range(0, jobs, 1000):
            cursor.execute(
                f"INSERT INTO jobs_job (id, {', '.join(columns)}) SELECT gen_random_uuid(), {values} "
                "FROM (SELECT * FROM jobs_job WHERE state = 'succeeded' LIMIT 1) AS ended, generate_series(1, 1000)"
            )
            cursor.execute("UPDATE jobs_job SET state = 'running' WHERE state = 'ready'")
            cursor.execute("UPDATE jobs_job SET state = 'succeeded', finished_at = now() WHERE state = 'running'")
        cursor.execute("DELETE FROM jobs_job WHERE id NOT IN (SELECT job FROM tests_order)")


def seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began
