"""A committed job is run, whatever becomes of its caller, and its connection."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from celery import shared_task
from django.db import connection

from jobs.models import Job
from tests import tasks
from tests.helpers.harness import (
    ROOT,
    Worker,
    effects,
    environment,
    wait_ended,
    wait_heartbeats,
    wait_reached,
    wait_state,
)
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@pytest.mark.core
def test_countdown_and_retry_come_back_when_their_time_has_come():
    with Worker():
        future = tasks.effect.apply_async(("future",), countdown=1)
        retried = tasks.retries.delay("retried", 2)
        [first, second] = wait_ended(future.id, retried.id)
    assert (first.finished_at - first.created_at).total_seconds() >= 1
    assert (second.state, second.retries, second.result) == ("succeeded", 2, 2)
    assert effects() == {"future": 1, "retried": 1}


ENQUEUER = """
import django, os, sys; django.setup()
from django.db import transaction
from tests import tasks
from tests.models import Effect
with transaction.atomic():
    Effect.objects.create(key="row")
    tasks.effect.delay("job")
    if sys.argv[1] == "before_the_commit":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "right_after_the_commit":
        # The first hook of the transaction runs before ours.
        hooks = transaction.get_connection().run_on_commit
        hooks.insert(0, (set(), lambda: os.kill(os.getpid(), 9), False))
"""


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize(
    ("moment", "sync", "expected"),
    [
        ("before_the_commit", "", set()),
        ("right_after_the_commit", "", {"row", "job"}),
        ("between_commit_and_ring", "before_notify=kill", {"row", "job"}),
    ],
)
def test_enqueuing_process_killed(tmp_path, moment, sync, expected):
    env = environment(JOBS_SYNC_POINTS=sync, JOBS_SYNC_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", ENQUEUER, moment], env=env, cwd=ROOT, timeout=30, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert Job.objects.count() == (1 if expected else 0)
    with Worker():
        if expected:
            wait_ended(Job.objects.get().pk)
        else:
            wait_ended(tasks.noop.delay().id)
    assert effects() == dict.fromkeys(expected, 1)


@shared_task
def forks(how):
    if child := os.fork():
        os.waitpid(child, 0)
        return os.getpid()
    if how == "raises":
        raise ValueError("in the child")
    return sys.exit(0) if how == "exits" else os.getpid()


@shared_task
def own_pid():
    return os.getpid()


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_a_forked_child_that_leaves_the_body_ends(how):
    """It would be a second process, with the slot and the connection of its parent, and would take the next jobs."""
    with Worker(concurrency=1) as worker:
        [row] = wait_ended(forks.delay(how).id)
        assert (row.state, row.lease) == ("succeeded", 1)
        assert wait_ended(own_pid.delay().id)[0].result == row.result
        assert "left the body: it ends" in worker.text()


@shared_task
def backend_pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@pytest.mark.core
def test_database_connections_are_kept_between_tasks():
    if connection.vendor != "postgresql":
        pytest.skip("asks PostgreSQL for its backend")
    with Worker(concurrency=1):
        jobs = wait_ended(*[backend_pid.delay().id for _ in range(5)])
        pids = {job.result for job in jobs}
        assert len(pids) == 1
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pids.pop()])
        [job] = wait_ended(tasks.effect.delay("after").id)
        assert (job.state, job.lease) == ("succeeded", 1)
    assert effects() == {"after": 1}


@shared_task(soft_time_limit=1)
def sleeps_in_the_database(key):
    """The soft limit strikes in mid-query and leaves a connection that Django takes for usable."""
    Effect.objects.create(key=key)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(20)")


@pytest.mark.core
def test_a_soft_limit_in_mid_query_leaves_no_broken_connection():
    if connection.vendor != "postgresql":
        pytest.skip("sleeps in PostgreSQL")
    with Worker(concurrency=1):
        limited = sleeps_in_the_database.delay("never")
        after = tasks.effect.delay("after")
        [first, second] = wait_ended(limited.id, after.id)
    assert (first.state, first.error["type"]) == ("failed", "SoftTimeLimitExceeded")
    assert second.state == "succeeded"
    assert effects() == {"after": 1}


@pytest.mark.core
@pytest.mark.parametrize("queries", [0, 1], ids=["at the completion", "between two queries"])
def test_a_connection_killed_in_mid_body_runs_the_job_again(tmp_path, queries):
    if connection.vendor != "postgresql":
        pytest.skip("terminates a PostgreSQL backend")
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1):
        result = tasks.gated.delay("a", str(started), str(gate), queries)
        wait_for(started.exists, 20, "the body runs")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE state = 'idle in transaction' AND datname = current_database()"
            )
        gate.touch()
        [job] = wait_ended(result.id)
    assert (job.state, job.node_losses, job.crashes, job.retries) == ("succeeded", 1, 0, 0)
    assert effects() == {"a": 1}


@pytest.mark.slow
@pytest.mark.core
def test_a_child_paused_at_the_commit_is_not_disturbed(tmp_path):
    """A paused process on a live node keeps its job: nobody runs it a second time."""
    with Worker(concurrency=1, sync="before_commit=pause") as worker:
        result = tasks.effect.delay("a")
        wait_reached(worker.directory, "before_commit")
        wait_heartbeats(worker.node.pk)
        wait_state(result.id, "running")
        (worker.directory / "before_commit.go").touch()
        [job] = wait_ended(result.id)
    assert (job.lease, job.crashes, job.node_losses) == (1, 0, 0), job.errors
    assert effects() == {"a": 1}
