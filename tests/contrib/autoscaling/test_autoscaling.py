"""The autoscaler makes processes for jobs, and takes none from a body."""

from __future__ import annotations

import signal
import time

import pytest

from jobs.models import Job
from tests.faults.worker import Worker
from tests.helpers.servers import wait_for
from tests.helpers.workers import Bodies

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def bodies(tmp_path) -> Bodies:
    return Bodies(tmp_path)


def innocent() -> bool:
    """Whether no job was counted for what became of its process."""
    return not Job.objects.exclude(crashes=0, node_losses=0, retries=0).exists()


@pytest.mark.slow
def test_the_autoscaler_counts_processes_that_run_jobs(broker, bodies):
    with Worker("--autoscale=3,1", AUTOSCALE_KEEPALIVE="1") as worker:
        bodies.begin("a", "b", "c")
        bodies.wait_running(3)
        bodies.end("a", "b")
        wait_for(lambda: "Scaling down" in worker.text(), 20, "idle processes go")
        assert Job.objects.get(pk=bodies.jobs["c"]).lease == 1
        bodies.end("c")
        bodies.begin("d", "e", "f")
        bodies.wait_running(6)
        bodies.end()
    assert innocent()


@pytest.mark.slow
@pytest.mark.servers
def test_autoscaling_goes_on_after_the_broker_was_away(use_broker, redis_server, bodies):
    """Celery 5.5 clears what its timer repeats."""
    use_broker(redis_server.url)
    with Worker("--autoscale=3,1") as worker:
        redis_server.kill()
        wait_for(lambda: "Cannot connect to redis" in worker.text(), 20, worker.text)
        redis_server.start()
        wait_for(lambda: worker.text().count("Connected to redis") == 2, 20, worker.text)
        bodies.begin("a", "b", "c")
        bodies.wait_running(3)
        bodies.end()
    assert innocent()


@pytest.mark.slow
def test_a_warm_stop_waits_for_a_process_that_was_made_later(broker, bodies):
    """Guard: Linux ends a process when the thread ends that made it (``PR_SET_PDEATHSIG``), and that one ends first."""
    with Worker("--autoscale=2,1") as worker:
        bodies.begin("a", "b")
        bodies.wait_running(2)
        worker.main.signal(signal.SIGTERM)
        worker.said("Warm shutdown")
        # The threads end within a second. If their processes went with them, the bodies are gone by now.
        time.sleep(2)
        bodies.end()
        worker.process.wait(20)
    assert not Job.objects.exclude(lease=1).exists()
    assert innocent()
