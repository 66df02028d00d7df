"""Workers are stopped and started, as deploys and operators do it."""

from __future__ import annotations

import signal

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from jobs.models import Job
from tests import tasks
from tests.faults.ledger import LOST_CHILD, LOST_MESSAGES, WORK
from tests.faults.worker import Worker, workers
from tests.harness import in_body, wait_beats, wait_state


def counts() -> set[tuple[int, int, int]]:
    return set(Job.objects.values_list("retries", "crashes", "node_losses"))


@pytest.mark.quick
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_stopped_once(ledger, number):
    """Warm: what runs is finished. Cold: it is handed back. In both cases nobody has to notice a death.

    Guard: the companion signs the node off, and hands back before that (``companion._Process._sign_off``).
    """
    ledger.enqueue(100)
    ledger.enqueue(100, countdown=1)
    ledger.enqueue(100, tasks.lingers)
    with Worker() as old:
        ledger.wait_effects(30)
        old.main.signal(number)
        old.process.wait(30)
        assert not Job.objects.filter(state="running").exists()
    with Worker():
        ledger.check(within=LOST_MESSAGES)
    assert counts() == {(0, 0, 0)}


@pytest.mark.parametrize("numbers", [[signal.SIGTERM] * 2, [signal.SIGTERM] * 3, [signal.SIGTERM, signal.SIGQUIT]])
def test_stopped_impatiently(ledger, tmp_path, numbers):
    """Again and again, while a body does not end.

    Guard: a process that is killed because its worker stops did not crash (``rescue.OwnJobs.is_stopping``).
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.waits.delay("long", str(started), str(gate))
    ledger.note("long", long)
    ledger.enqueue(300)
    with Worker() as old:
        in_body(long.id, started)
        for number in numbers:
            old.main.signal(number)
            old.said("shutdown")
        gate.touch()
        old.process.wait(30)
    with Worker():
        ledger.check(within=LOST_MESSAGES)
    assert counts() == {(0, 0, 0)}


def test_warm_shutdown_of_a_long_body_is_not_rescued(ledger, tmp_path):
    """It outlives any heartbeat by far; the worker beats until its last body has ended.

    Guard: the heartbeat comes from a process that heeds no signal (``companion._supervise``).
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    ledger.enqueue(300)
    with Worker() as old:
        long = tasks.waits.delay("long", str(started), str(gate))
        ledger.note("long", long)
        in_body(long.id, started)
        for process in (old.main, old.supervisor, old.companion):
            process.signal(signal.SIGTERM)
        with Worker():
            wait_beats(old.node.pk)
            wait_beats(old.node.pk)
            assert wait_state(long.id, "running").lease == 1
            gate.touch()
            ledger.check(within=WORK)
    assert counts() == {(0, 0, 0)}


def test_time_to_stop_is_over(ledger, tmp_path, settings):
    """A body that does not end in STOP_TIMEOUT: its job goes back before its process is killed.

    Guard: the companion hands back first (``companion._Process._give_up``).
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
        ledger.check(within=LOST_MESSAGES)
    assert counts() == {(0, 0, 0)}


def test_soft_shutdown(ledger, tmp_path):
    """Celery waits a while before it goes cold; short bodies end in that time, long ones are handed back.

    Guard: what the worker cancels did not crash (``worker.Request.cancel``).
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
    gate.touch()
    with Worker():
        ledger.check(within=LOST_MESSAGES)
    assert counts() == {(0, 0, 0)}


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGKILL])
def test_stopped_inside_a_commit(ledger, database, number):
    """Nobody heard the COMMIT's answer; the row knows it.

    Guard: what comes out of a COMMIT is not believed, the row is (``execution._is_committed``), and the fence.
    """
    database.slow_commits(seconds=1)
    ledger.enqueue(20, tasks.commits_slowly)
    ledger.enqueue(300)
    with Worker() as old:
        database.wait_inside_commit()
        old.signal(number) if number == signal.SIGKILL else old.main.signal(number)
        old.process.wait(30)
    with workers(2, concurrency=4):
        ledger.check(within=2 * LOST_MESSAGES)


def test_migration_applied_while_workers_run(ledger):
    """Workers of the new release wait for their tables, and run when they are there.

    Guard: a worker without its tables waits (``worker.NodeStep.start``), and migrations are additive.
    """
    executor = MigrationExecutor(connection)
    latest = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "jobs"]
    call_command("migrate", "jobs", "0001", verbosity=0)
    with Worker(wait=False) as early:
        early.said("not migrated?", timeout=30)
        call_command("migrate", "jobs", latest[0][1], verbosity=0)
        ledger.enqueue(300)
        ledger.check(within=LOST_CHILD)


def test_every_worker_replaced_under_load(ledger):
    """A rolling deploy: one after the other stops warm, and its successor is up before that.

    Guard: several workers are safe side by side; a stopped one signs off (``companion._Process._sign_off``).
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
        ledger.check(within=LOST_MESSAGES)
    assert counts() == {(0, 0, 0)}
