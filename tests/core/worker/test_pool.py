"""The processes of a worker: how many there are, which of them is taken away, and what they share."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from celery import current_app, shared_task

from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.worker.pool import TaskPool
from jobs.worker.runner import Runner
from jobs.worker.watchdog import Handle
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.gates import once_only, wait_for_file
from tests.helpers.harness import ROOT, effects, environment, wait_ended
from tests.helpers.servers import wait_for
from tests.helpers.workers import Bodies
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def bodies(tmp_path) -> Bodies:
    return Bodies(tmp_path)


def tell(worker: Worker, command: str, **arguments: object) -> None:
    """Remote control of one worker; its answer says ok."""
    name = f"{worker.directory.name}@{os.uname().nodename}"
    [answer] = current_app.control.broadcast(command, arguments, destination=[name], reply=True, timeout=10, limit=1)
    assert "ok" in answer[name], answer


def innocent() -> bool:
    """Whether no job was counted for what became of its process."""
    return not Job.objects.exclude(crashes=0, node_losses=0, retries=0).exists()


# How many


def test_as_many_bodies_run_as_there_are_processes(broker, bodies):
    with Worker(concurrency=3):
        bodies.begin("a", "b", "c", "d")
        running = bodies.wait_running(3)
        assert len({bodies.pid(name) for name in running}) == 3
        # The fourth has no process.
        assert Job.objects.filter(state="running").count() == 3
        bodies.end(running[0])
        bodies.wait_running(4)
        bodies.end()
    assert innocent()


@pytest.mark.slow
def test_a_pool_that_shrinks_takes_no_process_from_a_body(broker, bodies):
    with Worker(concurrency=1) as worker:
        bodies.begin("a")
        pid = bodies.pid("a")
        tell(worker, "pool_grow", n=2)
        bodies.begin("b", "c")
        bodies.wait_running(3)
        bodies.end("b", "c")
        # A process that looks for its next job is not idle, and nobody can see that from outside.
        time.sleep(0.5)
        tell(worker, "pool_shrink", n=2)
        bodies.begin("d")
        time.sleep(1)
        # The only process left has a body.
        assert bodies.running() == ["a", "b", "c"]
        assert Job.objects.get(pk=bodies.jobs["d"]).state == "ready"
        bodies.end("a")
        assert bodies.pid("d") == pid
        bodies.end()
    assert innocent()


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["worker_max_tasks_per_child", "worker_max_memory_per_child"])
def test_a_process_that_has_done_its_share_is_replaced(broker, limit):
    value = {"worker_max_tasks_per_child": 5, "worker_max_memory_per_child": 1000}[limit]
    with Worker(concurrency=2, JOBS_TEST_CELERY=json.dumps({limit: value})):
        results = tasks.effect.delay_many([(f"k{n}",) for n in range(30)])
        wait_ended(*[result.id for result in results])
        after = tasks.effect.delay("after")
        wait_ended(after.id)
    assert sum(effects().values()) == 31
    pids = list(Effect.objects.values_list("pid", flat=True))
    assert len(set(pids)) >= 4
    assert innocent()
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


# Queues


@pytest.mark.slow
def test_a_worker_claims_from_its_own_queues_and_none_of_them_starves():
    with Worker("-Q", "one,two", concurrency=1):
        many = tasks.lingers.delay_many([(f"one-{n}", 0.01) for n in range(200)], queue="one")
        few = [tasks.effect.apply_async((f"two-{n}",), queue="two") for n in range(5)]
        elsewhere = tasks.effect.apply_async(("elsewhere",), queue="three")
        wait_ended(*[result.id for result in few])
        assert Job.objects.filter(queue="one", state="ready").exists(), "they did not wait for the other queue"
        wait_ended(*[result.id for result in many])
        assert Job.objects.get(pk=elsewhere.id).state == "ready"


# Stock tasks beside jobs


@pytest.mark.slow
def test_a_stock_task_does_not_wait_for_a_stream_of_jobs(broker):
    with Worker(concurrency=2):
        tasks.stock.delay("warm")
        wait_for(lambda: effects()["warm"], 20, "stock tasks run")
        results = tasks.lingers.delay_many([(f"k{n}", 0.005) for n in range(800)])
        waits = []
        for number in range(10):
            began = time.monotonic()
            tasks.stock.delay(f"stock-{number}")
            wait_for(Effect.objects.filter(key=f"stock-{number}").exists, 10, "the stock task", step=0.005)
            waits.append(time.monotonic() - began)
        assert Job.objects.filter(state="ready").exists(), "jobs went on all the while"
        assert statistics.median(waits) < 0.3, waits
        wait_ended(*[result.id for result in results], timeout=60)
    assert set(effects().values()) == {1}


@pytest.mark.slow
def test_a_stream_of_stock_tasks_does_not_starve_jobs(broker):
    with Worker(concurrency=2):
        for number in range(300):
            tasks.stock.delay(f"stock-{number}")
        results = tasks.effect.delay_many([(f"k{n}",) for n in range(20)])
        wait_ended(*[result.id for result in results])
        assert effects()["stock-299"] == 0, "stock tasks still wait"
        wait_for(lambda: len(effects()) == 320, 60, "all stock tasks ran")
    assert set(effects().values()) == {1}


@pytest.mark.slow
def test_a_stock_task_goes_to_the_process_that_is_not_in_a_body(broker, bodies):
    with Worker(concurrency=2):
        bodies.begin("long")
        pid = bodies.pid("long")
        for number in range(10):
            tasks.stock.delay(f"stock-{number}")
        wait_for(lambda: len(effects()) == 10, 20, "the other process ran them")
        assert pid not in set(Effect.objects.values_list("pid", flat=True))
        bodies.end()


@shared_task(atomic=False)
def holds_others_up(key, started, gate):
    """Short, but for one that has others behind it in its claim."""
    if any(slot.batch for slot in worker_state.occupied() if slot.pid == os.getpid()) and once_only(started):
        wait_for_file(gate)
    Effect.objects.create(key=key, pid=os.getpid())


@pytest.mark.slow
@pytest.mark.servers
def test_the_limit_of_a_stock_task_that_is_over_ends_no_job(use_broker, redis_server, bodies, tmp_path):
    """It ended while the broker was away, and the worker has not read so when the time is over."""
    use_broker(redis_server.url)
    with Worker(concurrency=1, JOBS_TEST_CELERY='{"task_soft_time_limit": null}') as worker:
        arguments = ("stock", str(tmp_path / "stock"), str(tmp_path / "gate"))
        tasks.stock_waits.apply_async(arguments, time_limit=6, soft_time_limit=None)
        wait_for((tmp_path / "stock").exists, 20, "the stock task runs")
        over = time.monotonic() + 6.5
        # The worker reads that it has begun, and watches its time.
        tell(worker, "ping")
        redis_server.kill()
        try:
            wait_for(lambda: "Cannot connect to redis" in worker.text(), 20, worker.text)
            (tmp_path / "gate").touch()
            bodies.begin("job")
            bodies.wait_running(1)
            time.sleep(max(0.0, over - time.monotonic()))
        finally:
            redis_server.start()
        wait_for(lambda: worker.text().count("Connected to redis") == 2, 20, worker.text)
        wait_for(lambda: "stock_waits" in worker.text() and "succeeded in" in worker.text(), 20, worker.text)
        bodies.end()
        [job] = wait_ended(bodies.jobs["job"])
    assert (job.state, job.lease, job.node_losses, job.crashes) == ("succeeded", 1, 0, 0)
    assert effects() == {"stock": 1, "job": 1}


@pytest.mark.slow
def test_what_waits_behind_a_long_body_is_given_to_another_process(broker, tmp_path):
    """The claim expected short bodies, and one of them takes long."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=2):
        results = holds_others_up.delay_many([(f"k{n}", str(started), str(gate)) for n in range(200)])
        pid = int(wait_for(lambda: started.exists() and started.read_text(), 20, "a body holds others up"))
        wait_for(lambda: len(effects()) == 199, 10, "the others ran")
        [held] = Job.objects.exclude(state="succeeded")
        assert held.lease == 1
        gate.touch()
        wait_ended(*[result.id for result in results])
    assert Effect.objects.filter(pid=pid).latest("pk").key == held.args[0]
    assert set(effects().values()) == {1}
    assert Job.objects.filter(lease=2).exists(), "what waited was claimed a second time"
    assert innocent()


# What the processes share

SCRIPT = """
import gc, os, signal
import django
django.setup()
from jobs.worker import pool
from shop.celery import app

def dies():
    for each in gc.get_objects():
        if isinstance(each, pool.Lock):
            each.acquire()
    os.kill(os.getpid(), signal.SIGKILL)

processes = pool.BlockingPool(1, initializer=lambda *args: None, initargs=(app, "here"))
assert len([each for each in gc.get_objects() if isinstance(each, pool.Lock)]) == 2
processes.apply_async(dies)
assert processes.apply_async(os.getpid).get(timeout=20) != os.getpid()
processes.terminate()
processes.join()
"""


@pytest.mark.slow
def test_a_process_that_is_killed_takes_no_lock_along():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_idle_processes_that_are_killed_are_replaced(broker):
    with Worker(concurrency=2) as worker:
        wait_ended(tasks.effect.delay("a").id)
        for child in worker.children:
            child.kill()
        tasks.stock.delay("stock")
        wait_ended(tasks.effect.delay("b").id)
        wait_for(lambda: effects()["stock"], 20, "a stock task")
    assert innocent()


def test_the_banner_names_the_pool_as_people_do():
    assert f"{TaskPool.__module__}:{TaskPool.__name__}" == "celery.concurrency.prefork:TaskPool"


# One process


@pytest.fixture
def runner(node):
    """Makes what claims and runs jobs in a process of a worker."""
    worker_state.queues = [current_app.conf.task_default_queue]
    return partial(Runner, current_app._get_current_object(), "here")


def test_a_process_does_its_share_and_no_more(runner):
    tasks.noop.delay_many([(n,) for n in range(40)])
    with pytest.raises(SystemExit):
        one = runner(most=10)
        while one.run_batch():
            pass
    assert Job.objects.filter(state="succeeded").count() == 10


def test_a_process_that_is_too_large_from_the_start_is_not_replaced_for_nothing(runner):
    large = runner(memory=1)
    assert not large.run_batch()
    tasks.noop.delay()
    with pytest.raises(SystemExit):
        large.run_batch()
    assert Job.objects.get().state == "succeeded"


def test_an_error_of_python_in_a_claim_counts_for_no_job(runner, monkeypatch):
    """Rows were claimed, and then there was no memory for them."""
    tasks.noop.delay_many([(n,) for n in range(3)])
    one = runner()
    with monkeypatch.context() as patch:
        patch.setattr(Job, "of", lambda *given: 1 / 0)
        patch.setattr(Job, "from_db", lambda *given: 1 / 0)
        assert not one.run_batch()
    assert set(Job.objects.values_list("state", "node_losses", "crashes")) == {("ready", 0, 0)}
    wait_for(lambda: one.run_batch() and Job.objects.filter(state="succeeded").exists(), 10, "it claims again")


# Notes for the supervisor


def test_a_long_note_arrives_whole_and_one_that_was_cut_spoils_no_other(caplog):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handle = Handle()
    handle._pipe = writer
    try:
        # Nobody reads.
        handle.do(json.dumps, "x" * (1 << 18))
        assert "takes no note" in caplog.text
        heard = []
        thread = threading.Thread(target=lambda: heard.extend(iter(lambda: os.read(reader, 65536), b"")))
        thread.start()
        for number in range(3):
            handle.do(json.dumps, "y" * (1 << 18), number)
        handle.do(json.dumps, "last")
    finally:
        os.close(writer)
        handle._pipe = -1
    thread.join()
    os.close(reader)
    cut, *whole = filter(None, b"".join(heard).split(b"\n"))
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(cut)
    assert [json.loads(note)[-1] for note in whole] == [0, 1, 2, "last"]
