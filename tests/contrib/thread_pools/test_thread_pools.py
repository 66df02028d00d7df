"""Workers without processes run jobs in threads of their own, and stop as other workers do."""

from __future__ import annotations

import signal

import pytest

from jobs.models import Job, Node
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import effects, in_body, wait_ended
from tests.helpers.servers import wait_for
from tests.helpers.workers import assert_nothing_counted
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.wide
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_pool_smoke(pool):
    with Worker("-P", pool) as worker:
        results = tasks.effect.delay_many([(f"k{n}",) for n in range(10)])
        failing = [tasks.raises.delay(kind) for kind in ("exit", "interrupt")]
        retried = tasks.retries.delay("r", 1)
        ended = wait_ended(*[job.id for job in failing], retried.id, *[result.id for result in results])
        assert [job.error["type"] for job in ended[:2]] == ["SystemExit", "KeyboardInterrupt"]
        assert worker.stop() == 0
    assert effects() == {**{f"k{n}": 1 for n in range(10)}, "r": 1}


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["jobs", pytest.param("redis", marks=pytest.mark.servers)])
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_pool_without_processes_runs_jobs_and_stock_tasks(use_broker, request, tmp_path, broker, pool):
    use_broker(request.getfixturevalue("redis_server").url if broker == "redis" else "jobs://")
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker("-P", pool) as worker:
        results = tasks.effect.delay_many([(f"k{n}",) for n in range(50)])
        wait_ended(*[result.id for result in results])
        tasks.stock.delay("stock")
        wait_for(lambda: effects()["stock"], 20, "a stock task")
        in_body(tasks.waits.delay("last", str(started), str(gate)).id, started)
        worker.process.terminate()
        wait_for(lambda: "Warm shutdown" in worker.text(), 10, "it was told to stop")
        gate.touch()
        assert worker.process.wait(20) == 0
    assert set(effects().values()) == {1}
    assert_nothing_counted()


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_worker_runs_a_call_of_its_own_in_the_jobs_transaction(pool):
    results = tasks.own_call.delay_many([(str(n),) for n in range(20)])
    with Worker("-P", pool):
        jobs = wait_ended(*[result.id for result in results])
    assert {(job.state, job.node_losses) for job in jobs} == {("succeeded", 0)}
    assert effects() == {str(n): 1 for n in range(20)}
    assert set(Effect.objects.values_list("note", flat=True)) == {"True"}


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "solo"])
@pytest.mark.parametrize("how", ["warm", "cold"])
def test_what_was_claimed_and_not_begun_is_given_back(pool, how):
    """In the middle of a stream of short jobs, of which each thread has claimed several."""
    results = tasks.lingers.delay_many([(f"k{n}", 0.005) for n in range(150)])
    with Worker("-P", pool) as first:
        wait_for(lambda: len(effects()) > 20, 20, "it is in the middle of it")
        first.main.signal(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
        first.process.wait(20)
        wait_for(lambda: Node.objects.get(pk=first.node.pk).signed_off, 10, "it signed off")
        assert not Job.objects.filter(state="running").exists()
        assert Job.objects.filter(state="ready").exists(), "there is something left to do"
    assert_nothing_counted()
    with Worker():
        wait_ended(*[result.id for result in results])
    assert effects() == {f"k{n}": 1 for n in range(150)}
    assert_nothing_counted()
