"""Long waits, with the clocks that users get. (The bounds that they are told: ``tests/faults/test_bounds.py``.)"""

from __future__ import annotations

import time

import pytest

from tests import tasks
from tests.helpers.harness import Worker, effects, in_body, wait_ended

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


def test_what_outlives_the_visibility_timeout_runs_once(use_broker, redis_server):
    """Redis delivers again what was not acknowledged for so long. A job is no message, whatever it waits for."""
    use_broker(redis_server.url, visibility_timeout=5, unacked_restore_interval=1, unacked_restore_throttle=1)
    with Worker(), Worker():
        future = tasks.effect.apply_async(("future",), countdown=20)
        long = tasks.slow.delay("long", 15)
        [future_row, long_row] = wait_ended(future.id, long.id, timeout=80)
    assert (future_row.lease, long_row.lease) == (1, 1)
    assert 20 <= (future_row.finished_at - future_row.created_at).total_seconds() < 25
    assert effects() == {"future": 1, "long": 1}
