"""Workers are stopped and started, as deploys and operators do it."""

from __future__ import annotations

import os
import signal
import time
import uuid

import celery
import pytest
from celery import current_app, shared_task
from django.core.management import call_command

from jobs.lifecycle.run import NotHere
from jobs.models import Job, Node
from tests import tasks
from tests.faults import release
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, WORK
from tests.faults.manner import again
from tests.faults.producer import Producer
from tests.faults.worker import Worker, workers
from tests.helpers.gates import once_only
from tests.helpers.harness import in_body, wait_heartbeats, wait_state
from tests.helpers.servers import wait_for
from tests.models import Effect, Order

#: The worker declares its own node dead, when it stops in good order.
SIGN_OFF = Without("jobs.worker.supervisor:Supervisor._sign_off", call="rescue.bury")
#: Before that it hands back what it ran; and whose process ended because the worker stops did not crash.
HAND_BACK = "jobs.maintenance.rescue:OwnJobs.hand_back_all"
NO_CRASH = Without("jobs.maintenance.rescue:OwnJobs._end", "False", clause="worker_state.stopping_for is not None")

#: A cold stop tells the supervisor before Celery waits for its pool.
SOFT_SHUTDOWN = Without("jobs.contrib.stopping.stopping:prepare.end_soft_shutdown", "wait_for_soft_shutdown()")


def counts() -> set[tuple[int, int, int]]:
    return set(Job.objects.values_list("retries", "crashes", "node_losses"))


def deaths() -> int:
    """How many workers did not sign off, so that others had to wait until they were sure."""
    return Node.objects.filter(dead_at__isnull=False, signed_off=False).count()


def wait_signed_off() -> None:
    """The supervisor does that after the main process, if it had to kill that one."""
    wait_for(Node.objects.filter(signed_off=True).exists, 10, "the node signed off")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
@guard(SIGN_OFF)
@guard(HAND_BACK, NO_CRASH, case="3")
def test_stopped_once(ledger, number):
    """Warm: what runs is finished. Cold: it is handed back. In both cases nobody has to notice a death.

    Guard: the supervisor signs the node off, and hands back before that, unless it finished the processes that ended
    before it came to that.
    """
    ledger.enqueue(100)
    ledger.enqueue(100, countdown=1)
    ledger.enqueue(100, tasks.lingers)
    with Worker() as old:
        ledger.wait_effects(30)
        old.main.signal(number)
        old.process.wait(30)
        wait_signed_off()
        assert not Job.objects.filter(state="running").exists()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}
    assert deaths() == 0


@pytest.mark.brokers("redis", "rabbitmq")
@guard("jobs.contrib.broker_outages.alarm:Alarm.start")
def test_stopped_while_the_broker_says_nothing(ledger, broker):
    """It takes connections, and what is sent on them, and never answers: Celery waits for that without a bound.

    Guard: the alarm of a worker that stops.
    """
    ledger.enqueue(200)
    ledger.enqueue(100, tasks.lingers)
    with Worker() as old:
        ledger.wait_effects(in_all=230)
        broker.pause()
        old.main.signal(signal.SIGTERM)
        old.process.wait(25)
        assert not Job.objects.filter(state="running").exists()
        broker.resume()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}
    assert deaths() == 0


@guard(NO_CRASH, HAND_BACK, case="quit")
@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGTERM] * 2, [signal.SIGTERM] * 3, again([signal.SIGTERM, signal.SIGQUIT])],
    ids=["twice", "thrice", "quit"],
)
def test_stopped_impatiently(ledger, tmp_path, numbers):
    """Again and again, while a body does not end.

    Guard: a process that is killed because its worker stops did not crash; what still runs at the end is handed back.
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.gated.delay("long", str(started), str(gate))
    ledger.note("long", long)
    ledger.enqueue(300)
    with Worker() as old:
        in_body(long.id, started)
        for number in numbers:
            old.main.signal(number)
            old.said("shutdown")
        gate.touch()
        old.process.wait(30)
        wait_signed_off()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}


@guard(NO_CRASH, HAND_BACK)
def test_stopped_as_a_group(ledger, tmp_path):
    """systemd's ``KillMode=control-group``: the processes of the pool get the SIGTERM at the same moment.

    Guard: a process that ends because its worker stops did not crash.
    """
    gate = tmp_path / "gate"
    for key in ("one", "two"):
        ledger.note(key, tasks.waits.delay(key, str(tmp_path / key), str(gate)))
    ledger.enqueue(300)
    for _ in range(3):
        with Worker() as old:
            bodies = Job.objects.filter(state="running", node=old.node)
            wait_for(lambda bodies=bodies: bodies.count() == 2, 30, "both processes are in a body")
            old.signal(signal.SIGTERM)
            old.process.wait(15)
    gate.touch()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}
    assert deaths() == 0


@guard(Without("jobs.worker.watchdog:_supervise", "signal.SIG_DFL", clause="signal.SIG_IGN"))
def test_warm_shutdown_of_a_long_body_is_not_rescued(ledger, tmp_path):
    """It outlives any heartbeat by far; the worker beats until its last body has ended.

    Guard: the heartbeat comes from a process that heeds no signal.
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    ledger.enqueue(300)
    with Worker() as old:
        long = tasks.waits.delay("long", str(started), str(gate))
        ledger.note("long", long)
        in_body(long.id, started)
        for process in (old.main, old.watchdog, old.supervisor):
            process.signal(signal.SIGTERM)
        with Worker():
            wait_heartbeats(old.node.pk)
            wait_heartbeats(old.node.pk)
            assert wait_state(long.id, "running").lease == 1
            gate.touch()
            ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}


def shrug_off_sigterm(started):
    """Once."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if once_only(started):
        time.sleep(60)
    signal.signal(signal.SIGTERM, before)


@shared_task
def ignores_sigterm(key, started):
    shrug_off_sigterm(started)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(base=celery.Task)
def ignores_sigterm_as_stock(key, started):
    shrug_off_sigterm(started)


@guard(Without("jobs.contrib.stopping.stopping:end_overdue", call="os.kill"), case="stock")
@guard(SOFT_SHUTDOWN)
@pytest.mark.parametrize("stubborn", [again(ignores_sigterm), ignores_sigterm_as_stock], ids=["job", "stock"])
def test_stopped_cold_while_a_process_does_not_end(ledger, tmp_path, stubborn):
    """It shrugs off the SIGTERM with which Celery ends it, and Celery would wait for it for ever.

    Guard: the supervisor ends what is still there after a while, bodies first.
    """
    started = tmp_path / "started"
    ledger.enqueue(300)
    with Worker() as old:
        job = stubborn.delay("stubborn", str(started))
        if stubborn is ignores_sigterm:
            ledger.note("stubborn", job)
        wait_for(started.exists, 30, "the body runs")
        old.main.signal(signal.SIGQUIT)
        old.process.wait(25)
        wait_signed_off()
        assert not Job.objects.filter(state="running").exists()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}
    assert deaths() == 0


@pytest.mark.brokers("rabbitmq")
@pytest.mark.parametrize("pool", ["prefork", again("threads")])
@guard(SOFT_SHUTDOWN, case="prefork")
@guard(SOFT_SHUTDOWN, case="threads")
def test_stopped_cold_in_the_middle_of_a_write(ledger, tmp_path, settings, pool):
    """Celery's signal handler writes too, and waits for py-amqp's lock, which its own thread holds: for ever.

    Guard: the supervisor is told before that, and ends the worker.
    """
    if pool == "threads":
        settings.JOBS = {**settings.JOBS, "STOP_TIMEOUT": 1.0}
    order = tmp_path / "quit"
    ledger.enqueue(200)
    called = [Order.objects.create(key=f"by name {number}", job=uuid.uuid4()) for number in range(20)]
    ledger.enqueue(100, tasks.lingers)
    with Worker("-P", pool, JOBS_TEST_QUITS_IN_A_WRITE=str(order)) as old:
        ledger.wait_effects(in_all=200)
        order.touch()
        for each in called:
            current_app.send_task("tests.tasks.effect", (each.key,), task_id=str(each.job))
        assert old.process.wait(25) == -signal.SIGKILL
        wait_signed_off()
        assert not Job.objects.filter(state="running").exists()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}
    assert deaths() == 0


@guard("jobs.contrib.stopping.stopping:end_overdue")
@guard(Without("jobs.contrib.stopping.stopping:end_overdue", "()", call="worker_state.at_work"))
@guard(NO_CRASH, HAND_BACK)
def test_time_to_stop_is_over(ledger, tmp_path, settings):
    """A body that does not end in STOP_TIMEOUT: its process is killed, and its job goes back at once.

    Guard: the supervisor ends it, and what it ended did not crash.
    """
    settings.JOBS = {**settings.JOBS, "STOP_TIMEOUT": 1.0}
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.waits.delay("long", str(started), str(gate))
    ledger.note("long", long)
    ledger.enqueue(300)
    with Worker() as old:
        in_body(long.id, started)
        old.main.signal(signal.SIGTERM)
        old.process.wait(15)
    assert Job.objects.get(pk=long.id).state == "ready"
    gate.touch()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}


@guard(NO_CRASH, HAND_BACK)
def test_soft_shutdown(ledger, tmp_path):
    """Celery waits a while before it goes cold; short bodies end in that time, long ones are handed back.

    Guard: a process that ends because its worker stops did not crash.
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    ledger.enqueue(300)
    with Worker(REMAP_SIGTERM="SIGQUIT", JOBS_TEST_CELERY='{"worker_soft_shutdown_timeout": 2}') as old:
        long = tasks.waits.delay("long", str(started), str(gate))
        ledger.note("long", long)
        in_body(long.id, started)
        old.main.signal(signal.SIGTERM)
        old.said("Initiating Soft Shutdown")
        old.process.wait(30)
        wait_signed_off()
    gate.touch()
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}


@shared_task
def commits_slowly(key):
    """The COMMIT takes its time (see ``Database.slow_commits``)."""
    Effect.objects.create(key=key, pid=os.getpid(), note="slow commit")


@guard(
    Without(
        "jobs.execution.pipeline:_attempt",
        "_NOTHING:",
        clause="transaction.atomic(using) if run.is_atomic else _NOTHING:",
    ),
    case="9",
)
@pytest.mark.parametrize("number", [signal.SIGQUIT, again(signal.SIGKILL)])
def test_stopped_inside_a_commit(ledger, database, number):
    """Nobody heard the COMMIT's answer; the row knows it.

    Guard: the effect and the completion are one commit: there is nothing in between.
    """
    database.slow_commits(seconds=1)
    ledger.enqueue(20, commits_slowly)
    ledger.enqueue(300)
    with Worker() as old:
        database.wait_inside_commit()
        old.signal(number) if number == signal.SIGKILL else old.main.signal(number)
        old.process.wait(30)
    with workers(2, concurrency=4):
        ledger.check(within=2 * WORK)


@guard(Without("jobs.worker.watchdog:Handle.wait_until_registered", "True"))
def test_migration_applied_while_workers_run(ledger):
    """Workers of the new release wait for their tables, and run when they are there.

    Guard: a worker without its tables waits.
    """
    call_command("migrate", "jobs", "zero", verbosity=0)
    with Worker(wait=False) as early:
        early.said("not migrated?", timeout=30)
        early.said("waits for its database", timeout=30)
        assert " ready." not in early.text()
        call_command("migrate", "jobs", verbosity=0)
        ledger.enqueue(300)
        ledger.check(within=LOST_CHILD)


@guard(SIGN_OFF)
def test_every_worker_replaced_under_load(ledger):
    """A rolling deploy: one after the other stops warm, and its successor is up before that.

    Guard: several workers are safe side by side; a stopped one signs off.
    """
    with ledger.load(400), workers(2) as olds:
        for old in olds:
            ledger.wait_effects(30)
            with Worker() as young:
                old.main.signal(signal.SIGTERM)
                old.process.wait(30)
                ledger.wait_effects(20)
                young.main.signal(signal.SIGTERM)
                young.process.wait(30)
    with Worker():
        ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}
    assert deaths() == 0


@guard(Without("jobs.calling.calls:is_newer", "False"))
@guard(Without("jobs.calling.calls:terms", "False", clause="VERSION > 1"))
def test_release_after_beside_this_one(ledger):
    """Its jobs are of a version that this worker does not know; they wait for a worker that does.

    It proves that an older worker neither runs nor loses them. It does not prove anything about what a later release
    will put into its rows.

    Guard: the version is kept with the row, and a run of a later one is handed back.
    """
    with Worker() as old:
        with Producer(300, **release.AFTER) as producer:
            ledger.enqueue(50)
            assert producer.wait() == 0
        later = Job.objects.filter(options__v=2)
        assert later.count() >= 300
        wait_for(lambda: not later.filter(lease=0).exists(), 60, "all were met")
        assert not later.filter(state="succeeded").exists()
        with Worker(**release.AFTER) as new:
            ledger.wait_effects(50)
            assert old.stop() == 0
            ledger.check(within=NotHere.pause + WORK)
    assert set(later.values_list("node", flat=True)) == {new.node.pk}
    assert counts() == {(0, 0, 0)}
