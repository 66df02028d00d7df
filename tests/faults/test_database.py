"""The database ends connections, restarts, is away, is full, refuses, or is held up by others."""

from __future__ import annotations

import os
import time

import pytest
from celery import current_app, shared_task
from django.db import connection, transaction

from jobs.conf import conf
from jobs.contrib.listening import news
from jobs.lifecycle.run import RECONNECT
from jobs.models import Job, Node
from tests import tasks
from tests.faults.database import AWAY
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, LOST_WORKER, WORK
from tests.faults.manner import again
from tests.faults.proxy import Proxy
from tests.faults.worker import Worker, workers
from tests.helpers.harness import in_body
from tests.helpers.servers import wait_for
from tests.models import Effect, Order

#: Seconds that a database is away: 40 with the clocks that users get.
OUTAGE = 2.7 * conf().DEAD_AFTER

#: A run whose connection died has lost its database, and did not fail.
LOST = Without("jobs.execution.pipeline:_is_lost", "False", call="databases.is_lost")

#: Seconds that a busy machine takes on top of any wait.
SLACK = 1.5


def assert_nobody_is_blamed() -> None:
    """No node was declared dead, no body is taken for a killer, and no job came near its end."""
    assert not Node.objects.filter(dead_at__isnull=False, signed_off=False).exists()
    assert not Job.objects.filter(crashes__gt=0).exists()
    assert not Job.objects.filter(node_losses__gte=conf().MAX_NODE_LOSSES / 2).exists()


@pytest.mark.databases("postgres", "mariadb")
@guard(LOST)
def test_all_connections_terminated_once_a_second(ledger, database):
    """``pg_terminate_backend``, or KILL, as by an administrator or a pooler, in whatever statement they are.

    Guard: a body that lost its connection is handed back, and did not fail.
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


@pytest.mark.databases("postgres", "mariadb")
@guard(LOST)
@pytest.mark.quick
def test_database_killed_and_restarted_under_load(ledger, database):
    """As with ``pg_ctl restart -m immediate``: all transactions are lost, in the middle or inside their COMMIT.

    Guard: a body that lost its connection is handed back, and did not fail.
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


@guard(Without("jobs.maintenance.rescue:Rescue._silent", call="self._seen.clear"), case="killed")
@pytest.mark.parametrize("how", ["killed", again("paused")])
def test_database_away_for_longer_than_it_takes_to_be_dead(ledger, database, how):
    """Nobody could beat, and one finds the database again later than the others; a worker was started meanwhile.

    Guard: a rescuer that was away itself gives everybody the full time again. When it hangs for longer than twice
    ``DEAD_AFTER`` it starts again, and knows nothing of the time before.
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


@guard(LOST)
def test_idle_connections_exhaust_the_server(ledger, database):
    """Everybody loses the connection he has, and cannot open another: "sorry, too many clients already".

    Guard: a body that lost its connection is handed back, and did not fail.
    """
    ledger.enqueue(200, tasks.works)
    with workers(2):
        with ledger.load(100, forgive=AWAY):
            ledger.wait_effects(20)
            with database.exhausted():
                time.sleep(OUTAGE)
        ledger.check(within=LOST_CHILD)
        assert not Job.objects.filter(crashes__gt=0).exists()


@guard(Without("jobs.store.sessions:Session.__init__", "True", clause="pid == self.raw.info.backend_pid"))
def test_dead_worker_behind_a_pooler(ledger, database, tmp_path):
    """The server processes that it used serve others by now, who are not to be hurt.

    Guard: behind a pooler no server process is recorded, and no statement prepared.
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


@shared_task
def locks_two(key, first, second):
    """A deadlock with a body that locks them the other way round."""
    for name in (first, second):
        Order.objects.select_for_update().get(key=name)
        time.sleep(0.02)
    Effect.objects.create(key=key, pid=os.getpid())


@guard(Without("jobs.execution.pipeline:_is_conflict", "False"))
@guard(
    Without("jobs.contrib.psycopg3.session:Preparing.prepared", "vars(self)", clause='getattr(known, "_names", None)'),
)
def test_deadlocks(ledger):
    """Two kinds of bodies lock the same two rows in opposite order, again and again.

    Guard: a body runs again whose transaction the server ended in favour of another one; a rollback deallocates what
    was prepared.
    """
    one, other, *_ = ledger.enqueue(280)
    for _ in range(4):
        ledger.enqueue(3, locks_two, kwargs={"first": one, "second": other})
        ledger.enqueue(3, locks_two, kwargs={"first": other, "second": one})
    with workers(2, PGOPTIONS="-c deadlock_timeout=50ms") as crew:
        ledger.check(within=LOST_CHILD)
        assert any("deadlock detected" in worker.text() for worker in crew)
        assert_nobody_is_blamed()


@shared_task
def counts_and_adds(key):
    """Reads what others write: above READ COMMITTED only one of two at a time can commit."""
    order = Order.objects.order_by("pk").first()
    Effect.objects.count()
    time.sleep(0.02)
    order.save()
    Effect.objects.create(key=key, pid=os.getpid())


@guard(Without("jobs.execution.pipeline:_is_conflict", "False"))
@pytest.mark.parametrize("level", [again("repeatable read"), "serializable"])
def test_serialization_failures(ledger, level):
    """Bodies that read what others write; all transactions of the workers, and not only theirs, are on a higher level.

    Guard: a body runs again whose transaction the server ended in favour of another one.
    """
    ledger.enqueue(60, counts_and_adds)
    ledger.enqueue(250)
    with workers(2, PGOPTIONS="-c default_transaction_isolation=" + level.replace(" ", "\\ ")) as crew:
        ledger.check(within=LOST_CHILD)
        assert any("could not serialize access" in worker.text() for worker in crew)
        assert_nobody_is_blamed()


@guard(Without("jobs.store.databases:REFUSES", "()"))
def test_failover_to_a_reader_and_back(ledger, database):
    """For a moment the name leads to a server that takes no writes. Its connections are sound, and stay.

    Guard: who is refused all writes has lost his database.
    """
    ledger.enqueue(300, tasks.works)
    with database.reader() as reader, Proxy(database.url) as link, workers(2, DATABASE_URL=link.url):
        ledger.wait_effects(50)
        link.lead_to(reader)
        link.blip()
        time.sleep(conf().DEAD_AFTER)
        link.lead_to(database.url)
        ledger.enqueue(50)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()


@guard(Without("jobs.store.databases:REFUSES", "()"))
def test_server_takes_no_writes(ledger, database):
    """For a moment, and from one transaction to the next: also of jobs that were claimed before.

    Guard: who is refused all writes has lost his database.
    """
    ledger.enqueue(1000, tasks.lingers, kwargs={"seconds": 0.005})
    with workers(2):
        ledger.wait_effects(50)
        with database.read_only():
            time.sleep(conf().DEAD_AFTER)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()


@guard(LOST)
def test_idle_in_a_transaction_for_longer_than_the_server_allows(ledger, tmp_path):
    """The server ends the connection of a body that computes for too long; the next run is faster.

    Guard: a body that lost its connection is handed back, and did not fail.
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.gated.delay("long", str(started), str(gate), queries=1)
    ledger.note("long", long)
    ledger.enqueue(300)
    with workers(2, PGOPTIONS="-c idle_in_transaction_session_timeout=1s"):
        in_body(long.id, started)
        time.sleep(2)
        gate.touch()
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()
    assert Job.objects.get(pk=long.id).node_losses == 1


@pytest.mark.parametrize(
    "point",
    ["before_claim", again("after_claim"), again("before_commit"), "after_completion", again("after_commit")],
)
@pytest.mark.databases("postgres", "mariadb")
@guard(LOST, case="after_completion")
def test_connection_ended_at(ledger, database, point):
    """``pg_terminate_backend`` in each phase of a run.

    Guard: a body that lost its connection is handed back, and did not fail.
    """
    ledger.enqueue(300)
    with Worker(sync=f"{point}=pause") as worker:
        worker.reached(point)
        assert database.end_connections() > 2
        worker.go(point)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()


@guard(Without("jobs.contrib.listening.listener:_forever", "listen(alias, stopping)"))
def test_listener_cut(ledger, database, settings):
    """No ring is heard for a moment.

    Guard: it listens again, and looks at what came meanwhile.
    """
    settings.JOBS = {**settings.JOBS, "POLL_INTERVAL": 4.0}
    with Worker():
        listening = wait_for(database.listeners, 10, "the worker listens")
        database.end(listening)
        unheard = ledger.enqueue(150)
        wait_for(lambda: set(database.listeners()) - set(listening), 10, "it listens again")
        ledger.wait_effects(in_all=len(unheard))
        heard = ledger.enqueue(150)
        ledger.check(within=WORK)
        assert ledger.longest_wait(unheard) < conf().POLL_INTERVAL + SLACK
        assert ledger.longest_wait(heard) < SLACK


@pytest.mark.quick
@guard(Without("jobs.maintenance.clock:_tick", call="wakeup.send"))
def test_rings_lost(ledger, monkeypatch):
    """Every one of them.

    Guard: a poll finds what no ring told of.
    """
    with workers(2) as both:
        wait_for(lambda: all(" ready." in worker.text() for worker in both), 40, "the workers are ready")
        monkeypatch.setattr(news, "CHANNEL", "nobody_listens")
        for _ in range(10):
            ledger.enqueue(30)
            time.sleep(0.3)
        ledger.check(within=WORK)
        assert ledger.longest_wait() < conf().POLL_INTERVAL + SLACK


@guard(Without("jobs.contrib.short_looks.claims:ShortClaimer.in_order", "if False and", clause="if after and"))
def test_a_transaction_left_idle_in_another_session(ledger, database):
    """As long as it is open nothing can be vacuumed that jobs leave behind: here three versions of 20,000 rows.

    Guard: a claim does not begin at the dead end of its index.
    """
    with database.idle_transaction(), workers(2):
        ledger.enqueue(1000)
        ledger.check(within=2 * WORK)
        pass_through(20_000)
        ledger.enqueue(10, countdown=2)
        began = ledger.enqueue(300)
        ledger.check(within=WORK)
        assert ledger.longest_wait(began) < SLACK


@guard(Without("jobs.store.databases:free", "rows.select_for_update()"))
@guard(Without("jobs.store.postgresql:_FIRST", "", clause=" SKIP LOCKED"))
def test_a_transaction_left_idle_that_holds_jobs(ledger, database):
    """They have to wait for it, be they ready, due, expired, asked to end or old; nobody else has.

    Guard: a claim, and all that goes through many rows, passes over those that are locked.
    """
    held = ledger.enqueue(20) + ledger.enqueue(20, countdown=3)
    with database.holding(list(Job.objects.values_list("pk", flat=True))), workers(2):
        ledger.enqueue(100)
        ledger.enqueue(200, countdown=4)
        wait_for(lambda: Effect.objects.count() >= 300, 2 * WORK, "the others ran")
        assert not Effect.objects.filter(key__in=held).exists()
    with Worker():
        ledger.check(within=LOST_WORKER)


@pytest.mark.long
@pytest.mark.timeout(900)
@guard(*(Without("jobs.maintenance.clock:told", call=call) for call in ("notify", "wakeup.send")))
def test_a_hundred_thousand_due_in_the_same_second(ledger):
    """Those of another queue do not wait for them, be they due or not; nor do those of their own that are urgent.

    Guard: what comes due is moved batch by batch, and each queue has its turn.
    """
    queue = current_app.conf.task_default_queue
    many = [f"many {number}" for number in range(100_000)]
    results = tasks.effect.delay_many([(key,) for key in many], countdown=20)
    Order.objects.bulk_create([Order(key=key, job=result.id) for key, result in zip(many, results, strict=True)])
    with Worker("-Q", f"{queue},mail"):
        wait_for(Job.objects.filter(state="ready").exists, 60, "they are due", step=0.02)
        others = ledger.enqueue(300, queue="mail") + ledger.enqueue(50, queue="mail", countdown=1)
        wait_for(lambda: Effect.objects.filter(key__in=others).count() == len(others), WORK, "the others ran")
        assert Effect.objects.count() < 50_000
        ledger.check(within=240)
    assert ledger.longest_wait(others) < 1 + SLACK


@guard(Without("jobs.execution.pipeline:_came_of", "False", clause='reached == "begin"'))
@guard(
    Without(
        "jobs.contrib.write_turns.turns:_held",
        "_threads.acquire(), processes.acquire(), (yield), processes.release(), _threads.release()",
    )
)
@pytest.mark.databases("sqlite")
def test_sqlite_locked_by_another_writer(ledger, database):
    """For a moment in which a body cannot begin, and for longer than a worker waits for its claim or for its end.

    Guard: no lock for the transaction of the body is no failure of the job, and gives the turn back.
    """
    ledger.enqueue(300)
    impatient = {"JOBS_TEST_SQLITE_TIMEOUT": "0.2"}
    with Worker(sync="after_claim=pause", **impatient) as worker, Worker(**impatient):
        with ledger.load(50):
            worker.reached("after_claim")
            with database.locked():
                worker.go("after_claim")
                worker.said("not finished yet")
            ledger.wait_effects(20)
            with database.locked():
                time.sleep(len(RECONNECT) * 0.2 + sum(RECONNECT) + 1)
        ledger.check(within=LOST_CHILD)
        assert_nobody_is_blamed()
        assert not Job.objects.filter(retries__gt=0).exists()


def pass_through(jobs: int) -> None:
    """Let rows pass through all states that a job has, and go."""
    columns = [field.column for field in Job._meta.concrete_fields if field.column != "id"]
    values = ", ".join({"state": "'ready'", "finished_at": "NULL"}.get(column, column) for column in columns)
    # Nobody may see them.
    with transaction.atomic(), connection.cursor() as cursor:
        for _ in range(0, jobs, 1000):
            cursor.execute(
                f"INSERT INTO jobs_job (id, {', '.join(columns)}) SELECT gen_random_uuid(), {values} "
                "FROM (SELECT * FROM jobs_job WHERE state = 'succeeded' LIMIT 1) AS ended, generate_series(1, 1000)"
            )
            cursor.execute("UPDATE jobs_job SET state = 'running' WHERE state = 'ready'")
            cursor.execute("UPDATE jobs_job SET state = 'succeeded', finished_at = now() WHERE state = 'running'")
        cursor.execute("DELETE FROM jobs_job WHERE id NOT IN (SELECT job FROM tests_order)")
