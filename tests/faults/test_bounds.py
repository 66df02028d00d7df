"""The bounds that users are told, measured with the clocks that they get.

    pytest tests/faults --faults=bounds

The summary at the end is the table in docs/howto/deploy.md.
Each scene has a bound in seconds, and runs on every broker.
"""

from __future__ import annotations

import os
import time

import pytest
from django.db import connection

from jobs.conf import conf
from jobs.contrib.listening import news
from jobs.contrib.verify.verify import verify
from jobs.models import Job
from tests import tasks
from tests.faults.ledger import Ledger
from tests.faults.process import Process
from tests.faults.worker import Worker, workers
from tests.helpers.harness import in_body, wait_ended
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = pytest.mark.bounds


@pytest.fixture(autouse=True)
def default_clocks(settings, monkeypatch):
    settings.JOBS = {}
    monkeypatch.setenv("JOBS_TEST_CLOCKS", "default")


def held_up(ledger: Ledger, tmp_path, key: str):
    """A job whose first run holds its transaction open, and whose second does not; its id and its process."""
    started = tmp_path / "started"
    job = tasks.gated.delay(key, str(started), str(tmp_path / "gate"))
    ledger.note(key, job)
    return job.id, Process(in_body(job.id, started))


def test_child_dead(ledger, tmp_path):
    """A pool process is killed in its body.

    Guard: the worker state of what each process runs.
    """
    ledger.enqueue(300)
    with workers(2):
        key, child = held_up(ledger, tmp_path, "held")
        child.kill()
        ledger.measure(5, lambda: wait_ended(key))
        ledger.check(within=60)


def test_node_dead(ledger, tmp_path):
    """A whole worker is killed.

    Guard: rescue gives back the jobs of dead nodes.
    """
    ledger.enqueue(300)
    with Worker(concurrency=1) as first:
        key, _ = held_up(ledger, tmp_path, "held")
        with Worker():
            first.kill()
            ledger.measure(30, lambda: wait_ended(key))
            ledger.check(within=60)


@pytest.mark.brokers("redis", "rabbitmq")
def test_broker_away(ledger, broker):
    """The broker is killed, and comes back after half a minute; meanwhile jobs came in, and no broker held one up.

    Guard: the row is the queue.
    """
    with workers(2) as both:
        ledger.enqueue(300)
        ledger.check(within=60)
        broker.kill()
        during = []
        for _ in range(30):
            during += ledger.enqueue(10)
            time.sleep(1)
        ledger.check(within=5)
        broker.start()
        held_to(ledger, during)
        assert all(worker.main.is_alive for worker in both)


def test_database_back(ledger, database):
    """PostgreSQL is killed, and comes back after 40 seconds. Nobody is declared dead for it.

    Guard: who was away himself judges nobody.
    """
    ledger.enqueue(400, tasks.lingers)
    with workers(2):
        ledger.wait_effects(50)
        database.kill()
        time.sleep(40)
        database.start()
        ledger.measure(5, lambda: ledger.wait_effects(1))
        ledger.check(within=60)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM jobs_node WHERE dead_at IS NOT NULL")
            assert cursor.fetchone() == (0,)
    assert not Job.objects.filter(crashes__gt=0).exists()


def test_broker_emptied(ledger, broker):
    """Everything that it had is gone, again and again.

    Guard: the row is the queue.
    """
    with workers(2) as both:
        wait_for(lambda: all(" ready." in worker.text() for worker in both), 40, "the workers are ready")
        for _ in range(10):
            broker.drop_messages()
            ledger.enqueue(30)
            time.sleep(1)
        ledger.check(within=5)
        held_to(ledger, ledger.committed)


def test_rings_lost(ledger, monkeypatch):
    """No ring gets through.

    Guard: a poll finds what no ring told of.
    """
    with workers(2) as both:
        wait_for(lambda: all(" ready." in worker.text() for worker in both), 40, "the workers are ready")
        monkeypatch.setattr(news, "CHANNEL", "nobody_listens")
        for _ in range(10):
            ledger.enqueue(30)
            time.sleep(1.3)
        ledger.check(within=5)
        held_to(ledger, ledger.committed)


def held_to(ledger: Ledger, keys: list[str]) -> None:
    """No job waited for longer than a poll, and for the work of those before it."""
    wait = ledger.longest_wait(keys)
    ledger.measured = f"{wait:.1f} s"
    assert wait < conf().POLL_INTERVAL + 0.5


@pytest.mark.timeout(900)
def test_backlog(ledger):
    """100,000 jobs wait for one slow worker: each is claimed once, and nothing is done about those that wait.

    Guard: only what is claimed is renewed or given back.
    """
    for first in range(0, 100_000, 10_000):
        tasks.lingers.delay_many([(f"n{number}", 0.5) for number in range(first, first + 10_000)])
    with Worker(concurrency=1):
        time.sleep(float(os.environ.get("JOBS_BACKLOG_SECONDS") or 60))
        assert not [(finding.says, finding.examples) for finding in verify().findings if finding.violations]
    effects = list(Effect.objects.values_list("key", flat=True))
    assert len(effects) == len(set(effects)) == Job.objects.filter(state="succeeded").count() > 50
    assert not Job.objects.filter(lease__gt=2).exists()
    assert not Job.objects.exclude(crashes=0, node_losses=0).exists()
    again = Job.objects.filter(lease=2).count()
    ledger.measured = f"{again} claimed again"
    ledger.recovered = 0.0
    assert again <= 100
