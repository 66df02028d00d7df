"""How a worker starts and stops, and what its log lines say."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from jobs.conf import syncpoints
from jobs.conf.logs import log
from jobs.lifecycle.worker_state import is_alive
from jobs.models import Node
from jobs.worker.supervisor import REGISTERED
from jobs.worker.watchdog import Handle
from tests import tasks
from tests.helpers import fork_server
from tests.helpers.harness import ROOT, Worker, environment, wait_ended
from tests.helpers.servers import accepts, wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@pytest.mark.core
def test_a_main_process_that_hangs_at_its_very_end_ends():
    """After all was handed back and signed off: billiard joins a pool process that was started during the stop."""
    with Worker(concurrency=1, JOBS_TEST_HANGS_AT_EXIT="1") as worker:
        wait_ended(tasks.effect.delay("a").id)
        worker.process.terminate()
        assert worker.process.wait(20) == 0
    assert not Node.objects.filter(dead_at=None).exists()


def beside(pid: int) -> tuple[int, int] | None:
    """The watchdog of the worker with this main process, and its supervisor."""
    found = [(child, each) for child in children(pid) for each in children(child)]
    return found[0] if found else None


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_a_worker_that_loses_its_supervisor_while_it_starts_ends():
    """It would wait for ever: nobody is left that could register it."""
    with Worker(wait=False, DATABASE_URL="postgresql://127.0.0.1:1/away") as worker:
        watchdog, supervisor = wait_for(lambda: beside(worker.process.pid), 30, f"the supervisor: {worker.text()}")
        os.kill(watchdog, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)
        assert worker.process.wait(20) == 1
    assert "the supervisor is gone, this worker stops" in worker.text()


def test_a_supervisor_whose_pipe_is_closed_has_not_registered():
    """A process that is killed closes its pipes first, and is dead a moment later."""
    reads, writes = os.pipe()
    handle = Handle()
    handle._ready, handle._pid = reads, os.fork()
    if handle._pid == 0:
        os.close(writes)
        signal.pause()
    try:
        os.write(writes, REGISTERED)
        assert handle.wait_until_registered(5)
        os.close(writes)
        assert not handle.wait_until_registered(5)
    finally:
        os.kill(handle._pid, signal.SIGKILL)
        os.waitpid(handle._pid, 0)
        os.close(reads)


def test_log_lines_carry_job_task_and_node_as_fields(caplog):
    class FakeJob:
        pk, task, queue, node_id, lease = "id", "t", "q", "n", 4
        _state = type("S", (), {"db": "default"})

    with caplog.at_level(logging.INFO, "jobs"):
        log(logging.INFO, FakeJob(), "succeeded", "succeeded")
    [record] = caplog.records
    assert (record.job, record.task, record.node, record.action, record.lease) == ("id", "t", "n", "succeeded", 4)


def test_a_stopped_worker_signs_off():
    with Worker(concurrency=1) as worker:
        wait_ended(tasks.noop.delay().id)
        assert worker.stop() == 0
        assert Node.objects.get(pk=worker.node.pk).dead_at is not None


@pytest.mark.slow
def test_a_worker_without_its_tables_says_so_and_can_be_stopped(tmp_path):
    env = {"DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
    with Worker(concurrency=1, wait=False, **env) as worker:
        wait_for(lambda: "run manage.py migrate" in worker.text(), 20, "the cure is named")
        worker.process.terminate()
        worker.process.wait(15)
        assert worker.text().count("run manage.py migrate") < 8, "not again and again"


@pytest.mark.slow
@pytest.mark.skipif(settings.CELERY_BROKER_URL != "jobs://", reason="the broker without a server")
def test_celery_commands_work_without_django_being_set_up():
    with Worker(concurrency=1) as worker:
        command = [sys.executable, "-m", "celery", "-A", "shop", "status", "--timeout", "3"]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert worker.directory.name in done.stdout


@pytest.mark.slow
def test_celerys_own_signals_are_sent_around_jobs(tmp_path):
    path = tmp_path / "signals"
    with Worker(concurrency=1, JOBS_TEST_CELERY_SIGNALS=str(path)):
        jobs = [tasks.effect.delay("done"), tasks.raises.delay("no"), tasks.retries.delay("again", 1)]
        wait_ended(*[job.id for job in jobs])
        child = Effect.objects.get(key="done").pid
    heard = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["pid"] for line in heard} == {child}
    done, failed, again = ([line["signal"] for line in heard if line["id"] == job.id] for job in jobs)
    assert done == ["task_prerun", "task_success", "task_postrun"]
    assert failed == ["task_prerun", "task_failure", "task_postrun"]
    assert again == ["task_prerun", "task_retry", "task_postrun", *done]


@pytest.mark.slow
def test_a_worker_whose_main_process_is_killed_did_not_stop_in_good_order():
    with Worker() as worker:
        node = Node.objects.get(dead_at=None)
        os.kill(worker.process.pid, signal.SIGKILL)
        wait_for(lambda: Node.objects.get(pk=node.pk).dead_at, 20, "its supervisor declares it dead")
        assert not Node.objects.get(pk=node.pk).signed_off


def test_sync_points_are_disarmed_unless_a_test_arms_them():
    assert syncpoints._hook is None
    seen: list[str] = []
    syncpoints.arm(seen.append)
    syncpoints.reach("before_commit")
    assert seen == ["before_commit"]


STARTER = """
import sys, time
from tests.helpers.servers import Redis
server = Redis()
print(server.port, server.process.pid, flush=True)
time.sleep(600)
"""


def test_a_server_dies_with_the_process_that_started_it(redis_server):
    starter = subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    port, pid = map(int, starter.stdout.readline().split())
    assert accepts(port)
    starter.kill()
    starter.wait()
    wait_for(lambda: not is_alive(pid) and not accepts(port), 10, "the server died")


FORKS = """
import os, pathlib, sys, time
from tests.helpers import fork_server
log = pathlib.Path(sys.argv[1])
forked = fork_server.start(["http.server", "0"], log, {**os.environ, **fork_server.START})
print(forked.pid, forked.poll(), type(forked).__name__, flush=True)
time.sleep(600)
"""


def test_so_does_a_worker_that_is_a_fork(tmp_path):
    starter = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid, *rest = starter.stdout.readline().split()
    assert rest == ["None", "Forked"]
    wait_for(lambda: "Serving HTTP" in (tmp_path / "log").read_text(), 20, "it runs, and says so in its file")
    starter.kill()
    starter.wait()
    wait_for(lambda: not is_alive(int(pid)), 10, "it died")


def test_a_fork_ends_as_another_process_does(tmp_path):
    def start(*argv: str) -> fork_server.Process:
        return fork_server.start(argv, tmp_path / "log", environment())

    killed = start("http.server", "0")
    assert start("calendar", "1970").wait(20) == 0
    assert start("calendar", "no year").wait(20) == 2
    assert "January" in (tmp_path / "log").read_text()
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.1)
    killed.kill()
    assert killed.wait(20) == -signal.SIGKILL
    assert all(isinstance(each, fork_server.Forked) for each in (killed, start("this")))
