"""Workers are killed with SIGKILL: each effect is committed once, and every job ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid

import pytest
from celery import shared_task
from django.db import connection

from jobs.models import Job, Node
from jobs.worker import watchdog
from tests import tasks
from tests.faults.strike import Strike
from tests.helpers import driver
from tests.helpers.harness import Worker, effects, in_body, wait_ended, wait_heartbeats, wait_state
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.wide]


@pytest.mark.core
def test_child_killed_in_mid_task_runs_again_and_commits_once(tmp_path):
    with Worker() as worker:
        started, gate = tmp_path / "started", tmp_path / "gate"
        job = tasks.gated.delay("a", str(started), str(gate))
        os.kill(in_body(job.id, started), signal.SIGKILL)
        [row] = wait_ended(job.id)
        assert row.state == "succeeded"
        assert (row.crashes, row.node_losses, row.lease) == (1, 0, 2)
        assert effects() == {"a": 1}
        assert worker.process.poll() is None


@pytest.mark.core
def test_whole_worker_killed_in_mid_task_a_second_worker_takes_over(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as first, Worker(concurrency=1) as second:
        job = tasks.gated.delay("a", str(started), str(gate))
        pid = in_body(job.id, started)
        (first if pid in first.pids() else second).kill()
        [row] = wait_ended(job.id)
    assert row.state == "succeeded"
    assert (row.crashes, row.node_losses) == (0, 1)
    assert effects() == {"a": 1}


@shared_task
def takes_its_node_down(key, poison=False):
    Effect.objects.create(key=key, pid=os.getpid())
    if poison:
        # The worker and its supervisor, as when the machine has no memory left.
        os.killpg(0, signal.SIGKILL)


@pytest.mark.core
def test_a_job_that_takes_its_node_down_fails_no_innocent_one(settings):
    """It is claimed with others, and as often as it may; of those that were claimed with it nobody is lost."""
    settings.JOBS = {**settings.JOBS, "MAX_NODE_LOSSES": 3}
    # The first ones teach the process how long the task takes: then it claims many at once.
    before, after = [takes_its_node_down.delay_many([(f"{n}-{m}",) for m in range(150)]) for n in range(2)]
    poison, innocent = str(before[-1].id), {str(each.id) for each in [*before[:-1], *after]}
    Job.objects.filter(pk=poison).update(args=["poison", True])
    for _ in range(settings.JOBS["MAX_NODE_LOSSES"]):
        with Worker(concurrency=1, wait=False, JOBS_TEST_CLAIMS_MANY="1") as worker:
            assert wait_for(lambda worker=worker: worker.process.poll(), 60, "it has struck") == -signal.SIGKILL
    with Worker(concurrency=1):
        rows = {str(row.pk): row for row in wait_ended(poison, *innocent, timeout=60)}
    assert (rows[poison].state, rows[poison].node_losses, rows[poison].crashes) == ("failed", 3, 0)
    assert {(row.state, row.node_losses, row.crashes) for key, row in rows.items() if key in innocent} == {
        ("succeeded", 0, 0)
    }
    assert max(rows[key].lease for key in innocent) == 2, "they were claimed with it"
    assert set(effects().values()) == {1}


@pytest.mark.core
def test_a_killed_main_process_counts_for_what_was_begun(tmp_path):
    """The supervisor outlives it for a moment, and knows from the worker state what that is."""
    struck = Strike(tmp_path, "middle", "body", "wait")
    jobs = tasks.effect.delay_many([(str(number),) for number in range(300)])
    with Worker(concurrency=1, **struck.env) as worker:
        struck.wait()
        os.kill(worker.process.pid, signal.SIGKILL)
        running = Job.objects.filter(state="running")
        wait_for(lambda: not running.exists(), 20, "the supervisor gave back what the worker had")
    assert set(Job.objects.exclude(node_losses=0).values_list("pk", "node_losses")) == {(uuid.UUID(struck.job), 1)}
    assert Job.objects.filter(pk__in=struck.behind, state="ready").count() == len(struck.behind)
    assert len(jobs) == 300


@pytest.mark.core
def test_a_main_process_that_is_killed_between_two_bodies_counts_for_nobody(tmp_path):
    struck = Strike(tmp_path, "middle", "between", "wait")
    tasks.effect.delay_many([(str(number),) for number in range(300)])
    with Worker(concurrency=1, **struck.env) as worker:
        struck.wait()
        os.kill(worker.process.pid, signal.SIGKILL)
        running = Job.objects.filter(state="running")
        wait_for(lambda: not running.exists(), 20, "the supervisor gave back what the worker had")
    assert not Job.objects.exclude(node_losses=0).exists()


def with_pool(pool):
    if pool is None:
        return "{}"
    return json.dumps({"OPTIONS": {**connection.settings_dict["OPTIONS"], "pool": pool}, "CONN_MAX_AGE": 0})


@pytest.mark.core
@pytest.mark.parametrize("most", [1, 2])
def test_a_small_pool_of_connections_is_enough_to_give_jobs_back(tmp_path, most):
    """Django's own pool, of one for each process. The supervisor's threads take turns at it."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    # Django has pools for psycopg 3 only.
    driver.prepares()
    pool = {"min_size": 1, "max_size": most, "timeout": 5}
    with Worker(concurrency=2, JOBS_TEST_DATABASE=with_pool(pool)) as worker:
        started, gate = tmp_path / "started", tmp_path / "gate"
        jobs = [tasks.gated.delay("a", str(started), str(gate)), *tasks.effect.delay_many([(n,) for n in range(100)])]
        os.kill(in_body(jobs[0].id, started), signal.SIGKILL)
        later = tasks.effect.apply_async(("later",), countdown=1)
        rows = wait_ended(*(job.id for job in jobs), later.id)
        assert {row.state for row in rows} == {"succeeded"}
        assert "couldn't get a connection" not in worker.text()


@pytest.mark.slow
def test_whole_worker_killed_and_restarted(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as first:
        job = tasks.gated.delay("a", str(started), str(gate))
        in_body(job.id, started)
        first.kill()
    with Worker(concurrency=1):
        [row] = wait_ended(job.id)
    assert row.state == "succeeded"
    assert effects() == {"a": 1}


@pytest.mark.slow
def test_main_process_killed_alone(tmp_path):
    """The supervisor outlives it for a moment, and gives the job back without waiting for the heartbeat."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as first:
        job = tasks.gated.delay("a", str(started), str(gate))
        in_body(job.id, started)
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        wait_for(lambda: Node.objects.filter(pk=first.node.pk, dead_at__isnull=False).exists(), 10, "node signed off")
        wait_state(job.id, "ready")
        wait_for(lambda: not first.pids(), 10, "no process of the worker is left")
    with Worker(concurrency=1):
        wait_ended(job.id)
    assert effects() == {"a": 1}


@pytest.mark.core
@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_commit", "after_completion", "after_commit"])
def test_child_killed_at(point):
    """Beside the body nobody is to blame: it counts as a loss, and only if the job had to run again."""
    with Worker(sync=f"{point}=kill"):
        job = tasks.effect.delay("a")
        [row] = wait_ended(job.id)
    assert row.state == "succeeded"
    assert effects() == {"a": 1}
    lost = point not in ("before_claim", "after_commit")
    assert (row.crashes, row.node_losses, row.lease) == (0, int(lost), 1 + lost)


@shared_task
def always_kills(key):
    Effect.objects.create(key=key, pid=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_that_always_kills_its_process_ends_failed():
    with Worker() as worker:
        poison = always_kills.delay("poison")
        innocent = [tasks.effect.delay(f"i{n}") for n in range(5)]
        [row] = wait_ended(poison.id, timeout=40)
        assert row.state == "failed"
        assert row.crashes == 3
        assert row.error["type"] == "WorkerLostError"
        assert [entry["attempt"] for entry in row.errors] == [1, 2, 3]
        wait_ended(*[job.id for job in innocent])
        assert worker.process.poll() is None
    assert "poison" not in effects()
    assert sum(effects().values()) == 5


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("memory", "MemoryError"),
        ("exit", "SystemExit"),
        # Ctrl-C never reaches a pool's process: there the body has raised it.
        ("interrupt", "KeyboardInterrupt"),
        ("nul", "ValueError"),
    ],
)
def test_an_ugly_exception_fails_the_job_and_not_the_worker(kind, name):
    with Worker(concurrency=1) as worker:
        [row] = wait_ended(tasks.raises.delay(kind, "never").id)
        assert row.state == "failed"
        assert row.error["type"] == name
        if kind == "nul":
            assert "a\\x00b" in row.error["message"]
        wait_ended(tasks.effect.delay("after").id)
        assert worker.process.poll() is None
    assert effects() == {"after": 1}


@pytest.mark.slow
def test_hard_time_limit_fails_the_job():
    with Worker(concurrency=1) as worker:
        [row] = wait_ended(tasks.never_ends.delay("never").id)
        assert (row.state, row.error["type"]) == ("failed", "TimeLimitExceeded")
        wait_ended(tasks.effect.delay("after").id)
        assert worker.process.poll() is None
    assert effects() == {"after": 1}


def test_the_supervisor_is_started_again_when_it_dies_alone(tmp_path):
    with Worker(concurrency=1) as worker:
        before = set(worker.pids())
        supervisors = [pid for pid in before if _is_supervisor(pid, worker)]
        assert len(supervisors) == 1
        os.kill(supervisors[0], signal.SIGKILL)
        wait_for(lambda: "died and is started again" in worker.text(), 10, "restart")
        future = tasks.effect.apply_async(("a",), countdown=0.3)
        wait_ended(future.id)
    assert effects() == {"a": 1}


def test_a_supervisor_that_stays_stopped_is_replaced():
    with Worker(concurrency=1) as worker:
        [stopped] = [pid for pid in worker.pids() if _is_supervisor(pid, worker)]
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: "died and is started again" in worker.text(), 20, "restart")
        wait_ended(tasks.effect.delay("a").id)
    assert effects() == {"a": 1}


def test_a_supervisor_that_is_stopped_for_moments_is_left_alone():
    """A tool that takes snapshots of processes stops each for a moment, again and again."""
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)

    def stop_now_and_then() -> None:
        for seconds in (1.0, 2.2):
            os.kill(child, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(child, signal.SIGCONT)
            time.sleep(0.3)
        os.kill(child, signal.SIGTERM)

    stopping = threading.Thread(target=stop_now_and_then)
    stopping.start()
    try:
        assert os.WTERMSIG(watchdog._ended(child)) == signal.SIGTERM
    finally:
        stopping.join()


def _is_supervisor(pid: int, worker: Worker) -> bool:
    """The grandchild: its parent is the watchdog, not the worker's main process."""
    with open(f"/proc/{pid}/stat") as stat:
        parent = int(stat.read().rpartition(")")[2].split()[1])
    return parent not in (worker.process.pid, os.getpid()) and pid != worker.process.pid


@pytest.mark.slow
def test_warm_shutdown_lets_a_long_body_finish_and_nobody_rescues_it(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as first, Worker(concurrency=1) as second:
        job = tasks.waits.delay("a", str(started), str(gate))
        body = in_body(job.id, started)
        owner = Job.objects.get(pk=job.id).node_id
        if first.node.pk != owner:
            first = second
        # The supervisor gets it as well, as from a shell or from systemd, and ignores it.
        for pid in first.pids():
            if pid != body:
                os.kill(pid, signal.SIGTERM)
        wait_for(lambda: "Warm shutdown" in first.text(), 10, "warm shutdown")
        # The supervisor beats on, so nobody calls the node dead.
        wait_heartbeats(owner)
        assert Job.objects.get(pk=job.id).state == "running"
        gate.touch()
        [row] = wait_ended(job.id)
        assert (row.state, row.lease, row.node_losses) == ("succeeded", 1, 0)
        first.process.wait(15)
        wait_for(lambda: Node.objects.filter(pk=owner, dead_at__isnull=False).exists(), 10, "signed off")
    assert effects() == {"a": 1}


@pytest.mark.core
def test_paused_worker_rolls_its_effects_back(tmp_path):
    """SIGSTOP past its heartbeat, a second run elsewhere, SIGCONT: the zombie's effects never appear."""
    if connection.vendor == "sqlite":
        pytest.skip("a process paused inside its transaction holds SQLite's only write lock")
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as zombie:
        job = tasks.gated.delay("a", str(started), str(gate))
        in_body(job.id, started)
        with Worker(concurrency=1):
            zombie.signal(signal.SIGSTOP)
            [row] = wait_ended(job.id)
            assert (row.state, row.node_losses) == ("succeeded", 1)
            gate.touch()
            zombie.signal(signal.SIGCONT)
            wait_for(lambda: "given to another run" in zombie.text(), 20, "the zombie noticed")
            # It comes back as another node, and works again.
            wait_for(lambda: Node.objects.filter(pid=zombie.process.pid, dead_at=None).exists(), 10, "a new node")
    assert effects() == {"a": 1}
    assert Job.objects.get(pk=job.id).state == "succeeded"


@pytest.mark.slow
def test_cold_shutdown_counts_nowhere(tmp_path):
    """Three deploys that stop at once must not make poison of an innocent long job."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    job = tasks.waits.delay("a", str(started), str(gate))
    for _ in range(3):
        with Worker(concurrency=1) as worker:
            wait_state(job.id, "running")
            worker.process.send_signal(signal.SIGQUIT)
            worker.process.wait(30)
            wait_state(job.id, "ready")
    row = Job.objects.get(pk=job.id)
    assert (row.crashes, row.node_losses, row.retries) == (0, 0, 0)
    gate.touch()
    with Worker(concurrency=1):
        wait_ended(job.id)
    assert effects() == {"a": 1}
