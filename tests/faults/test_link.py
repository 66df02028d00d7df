"""The link between callers or workers and their broker breaks, hangs, or takes its time."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from celery import current_app
from django.core.management import call_command

from jobs import publisher
from jobs.models import Job
from tests import tasks
from tests.faults.broker import callers_use
from tests.faults.guards import BREAKER, CLAIM, LEFT, SUSPECTS, guard
from tests.faults.ledger import HELD_UP, LOST_MESSAGES, WORK
from tests.faults.manner import again
from tests.faults.proxy import Proxy
from tests.faults.worker import Worker, workers
from tests.harness import in_body
from tests.servers import wait_for


@pytest.mark.brokers("redis", "rabbitmq")
@guard(*LEFT)
def test_cut_in_mid_publish(ledger, broker, settings):
    """Again and again, after any number of bytes of a message.

    Guard: what did not certainly leave is left to the relay (``publisher.publish_inline``).
    """
    settings.JOBS = {**settings.JOBS, "GRACE": 60.0, "BREAKER": 0.2}
    with Proxy(broker.url) as link, callers_use(link.url), workers(2):
        with ledger.load(300):
            for size in range(500, 5000, 300):
                link.cut_after(requests=size)
                ledger.wait_committed(20)
        ledger.check(within=WORK)
        assert link.connections > 10


@pytest.mark.brokers("redis", "rabbitmq")
@guard(*SUSPECTS, case="redis")
@guard(*CLAIM, case="rabbitmq")
def test_cut_in_mid_consume(ledger, broker):
    """Again and again, after any number of bytes of a message; what a worker had got already comes a second time.

    Guard: the relay looks for lost messages (``Suspects.publish_again``), and a job is claimed once
    (``lifecycle.claim``).
    """
    ledger.enqueue(400, tasks.slow, kwargs={"seconds": 0.3})
    with Proxy(broker.url) as link, workers(2, concurrency=8, CELERY_BROKER_URL=link.url) as both:
        for size in range(3000, 15000, 1700):
            ledger.wait_effects(10)
            link.cut_after(answers=size)
            wait_for(lambda: not link.is_cutting, 30, "the cut has come")
        ledger.check(within=LOST_MESSAGES)
        assert all(worker.main.is_alive for worker in both)
        assert ledger.most_claims() == 1


@pytest.mark.brokers("redis", "rabbitmq")
@guard("jobs/request.py", 'companion.tell(ended=str(as_uuid(self.id)), why="cancelled")', "pass")
def test_cut_and_what_runs_is_cancelled_for_it(ledger, broker, tmp_path):
    """``worker_cancel_long_running_tasks_on_connection_loss``: Celery kills what runs, whenever the link is cut.

    Guard: what the worker cancels did not crash (``request.Request.cancel``).
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.waits.delay("long", str(started), str(gate))
    ledger.note("long", long)
    ledger.enqueue(300)
    setting = json.dumps({"worker_cancel_long_running_tasks_on_connection_loss": True})
    with Proxy(broker.url) as link, Worker(CELERY_BROKER_URL=link.url, JOBS_TEST_CELERY=setting):
        in_body(long.id, started)
        link.blip()
        wait_for(lambda: Job.objects.get(pk=long.id).lease > 1, LOST_MESSAGES, "it runs again")
        gate.touch()
        ledger.check(within=LOST_MESSAGES)
    assert set(Job.objects.values_list("retries", "crashes", "node_losses")) == {(0, 0, 0)}


@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("answers", [again(False), True], ids=["both-ways", "answers-only"])
@guard(*BREAKER)
@guard(
    "jobs/publisher.py",
    'options |= {"socket_connect_timeout": self.connect_timeout, "socket_timeout": answer_timeout}',
    "pass",
    case="redis",
)
def test_half_open_for_callers(ledger, broker, settings, caplog, answers):
    """Nobody closes the connection and nobody answers; with the answers alone, what was asked for is done.

    Guard: the first caller of a process waits for a bounded time (``publisher._Broker``), and the others not at all
    (``publisher._Breaker``).
    """
    settings.JOBS = {**settings.JOBS, "BREAKER": 3.0}
    with Proxy(broker.url) as link, callers_use(link.url), workers(2):
        with ledger.load(300):
            ledger.wait_committed(50)
            link.half_open(requests=not answers)
            ledger.wait_committed(300)
            link.restore()
        ledger.check(within=LOST_MESSAGES)
        assert ledger.most_claims() == 1
    ledger.callers_were_served(caplog)


@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("answers", [again(False), True], ids=["both-ways", "answers-only"])
@guard(*SUSPECTS, case="redis answers-only")
@guard(*SUSPECTS, case="redis both-ways")
@guard(*SUSPECTS, case="rabbitmq both-ways")
def test_half_open_for_a_worker(ledger, broker, answers):
    """What the broker has sent on that link never arrives; another worker gets it, and later the link is well again.

    Guard: the relay looks for lost messages (``Suspects.publish_again``).
    """
    ledger.enqueue(300)
    with Proxy(broker.url) as link, Worker(CELERY_BROKER_URL=link.url) as far, Worker():
        ledger.check(within=WORK)
        # Both have asked for more.
        link.half_open(requests=not answers)
        ledger.enqueue(100, tasks.lingers)
        ledger.check(within=LOST_MESSAGES)
        link.cut()
        link.restore()
        ledger.enqueue(100, tasks.lingers)
        ledger.check(within=LOST_MESSAGES)
        assert far.main.is_alive


@pytest.mark.brokers("redis", "rabbitmq")
@guard(
    "jobs/maintenance/relay.py",
    "left = publisher.publish(jobs, using, self.app, patient=True)",
    "left = publisher.publish(jobs, using, self.app)",
)
@pytest.mark.parametrize("ms", [300, again(200)])
def test_slow_link(ledger, broker, caplog, ms):
    """300 ms each way, for callers and workers: callers leave it to the relay, which has more patience. At 200 ms an
    answer comes just in time: the first callers pay for the roundtrips of a new connection, and of its declarations.

    Guard: the relay is patient (``publisher.publish``).
    """
    with Proxy(broker.url) as link, callers_use(link.url), workers(2, CELERY_BROKER_URL=link.url):
        ledger.enqueue(50)
        ledger.wait_effects(50)
        link.delay(ms / 1000)
        publisher.forget_connections()
        with ledger.load(250):
            ledger.wait_committed(100)
        ledger.wait_effects(5)
        link.delay(0)
        ledger.check(within=LOST_MESSAGES)
    if ms == 300:
        ledger.callers_were_served(caplog)
    else:
        *_, fourth, _, _, longest = sorted(ledger.waits)
        assert fourth < HELD_UP
        assert longest < 10 * 2 * ms / 1000


def tell(command: str) -> None:
    """Remote control of all workers."""
    queue = current_app.conf.task_default_queue
    assert current_app.control.broadcast(command, {"queue": queue}, reply=True, timeout=10, limit=1)


def status() -> dict:
    out = StringIO()
    call_command("jobs", "status", "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.mark.brokers("redis", "rabbitmq", "jobs")
@guard(
    "jobs/census.py",
    '"oldest_ready_seconds": max(waiting_since.values(), default=None)',
    '"oldest_ready_seconds": None',
)
def test_worker_that_does_not_consume(ledger, broker):
    """It is connected and alive, and somebody told it to consume nothing: the age of the oldest job shows it.

    Guard: the age of the oldest ready job (``manage.py jobs status``).
    """
    with Worker():
        tell("cancel_consumer")
        ledger.enqueue(300)
        wait_for(lambda: (status()["oldest_ready_seconds"] or 0) > 3, 10, "the status shows that jobs wait")
        found = status()
        assert [(node["alive"], node["running"]) for node in found["nodes"]] == [(True, 0)]
        assert found["jobs"]["ready"] >= 300
        tell("add_consumer")
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.brokers("redis", "rabbitmq", "jobs")
@guard(*SUSPECTS, case="redis")
def test_main_process_hangs(ledger, broker):
    """It holds messages and hands out none of them, while its companion beats; another worker gets them all the same.

    Guard: the relay looks for lost messages (``Suspects.publish_again``).
    """
    with Worker() as hanging:
        ledger.enqueue(300)
        ledger.check(within=WORK)
        # It asks for the next message, and will never know that it got it.
        hanging.main.pause()
        ledger.enqueue(50)
        wait_for(lambda: (status()["oldest_ready_seconds"] or 0) > 2, 10, "the status shows that jobs wait")
        assert [node["alive"] for node in status()["nodes"]] == [True]
        with Worker():
            ledger.check(within=LOST_MESSAGES)
            hanging.main.resume()
            ledger.check(within=WORK)
