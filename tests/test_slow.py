"""The bounds that users are told, with the clocks that they get."""

from __future__ import annotations

import os
import signal
import time

import pytest

from jobs.models import Job
from tests import tasks
from tests.harness import Worker, effects, in_body, wait_ended
from tests.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture(autouse=True)
def default_clocks(settings, monkeypatch):
    settings.JOBS = {}
    monkeypatch.setenv("JOBS_TEST_CLOCKS", "default")


@pytest.fixture(params=["jobs", "redis", "rabbitmq"])
def broker(request, use_broker):
    if request.param != "jobs":
        use_broker(request.getfixturevalue(f"{request.param}_server").url)
    return request.param


def test_killed_child_is_made_good_within_5_seconds(broker, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker():
        job = tasks.gated.delay("a", str(started), str(gate))
        os.kill(in_body(job.id, started), signal.SIGKILL)
        killed = time.monotonic()
        wait_ended(job.id)
        assert time.monotonic() - killed < 5
    assert effects() == {"a": 1}


def test_killed_worker_is_made_good_within_30_seconds_by_another(broker, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as first, Worker(concurrency=1) as second:
        job = tasks.gated.delay("a", str(started), str(gate))
        pid = in_body(job.id, started)
        (first if pid in first.pids() else second).kill()
        killed = time.monotonic()
        [row] = wait_ended(job.id, timeout=40)
        assert time.monotonic() - killed < 30
    assert (row.state, row.node_losses, row.crashes) == ("succeeded", 1, 0)
    assert effects() == {"a": 1}


def test_killed_worker_is_made_good_within_30_seconds_of_its_restart(broker, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as first:
        job = tasks.gated.delay("a", str(started), str(gate))
        in_body(job.id, started)
        first.kill()
    with Worker(concurrency=1):
        ready = time.monotonic()
        wait_ended(job.id, timeout=40)
        assert time.monotonic() - ready < 30
    assert effects() == {"a": 1}


def test_redis_flushed_with_200_published_jobs_all_run_within_60_seconds(use_broker, redis_server):
    use_broker(redis_server.url)
    results = tasks.effect.delay_many([(f"k{n}",) for n in range(200)])
    assert not Job.objects.filter(dispatched_at=None).exists()
    redis_server.call("FLUSHALL")
    flushed = time.monotonic()
    with Worker():
        wait_ended(*[result.id for result in results], timeout=80)
        assert time.monotonic() - flushed < 60
    assert effects() == {f"k{n}": 1 for n in range(200)}


def test_countdown_beyond_the_visibility_timeout_runs_once(use_broker, redis_server):
    use_broker(redis_server.url, visibility_timeout=10, unacked_restore_interval=1, unacked_restore_throttle=1)
    with Worker() as first, Worker() as second:
        future = tasks.effect.apply_async(("future",), countdown=45)
        long = tasks.slow.delay("long", 30)
        [future_row, long_row] = wait_ended(future.id, long.id, timeout=80)
        assert "a duplicate message" in first.text() + second.text(), "Redis delivered the long one again"
        # A copy that is still on its way would show now.
        wait_for(lambda: not Job.objects.exclude(state="succeeded").exists(), 5, "all ended")
    assert (future_row.lease, long_row.lease) == (1, 1)
    assert 45 <= (future_row.finished_at - future_row.created_at).total_seconds() < 50
    assert effects() == {"future": 1, "long": 1}
