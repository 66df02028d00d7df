"""The broker dies, forgets, is full, or is not where it was said to be."""

from __future__ import annotations

import json
import time
import uuid

import pytest
from celery import current_app

from jobs import lifecycle
from jobs.conf import conf
from jobs.models import Job
from tests import tasks
from tests.faults.broker import callers_use
from tests.faults.guards import BREAKER, DUE, LEFT, SUSPECTS, guard
from tests.faults.ledger import LOST_MESSAGES, WORK
from tests.faults.manner import again
from tests.faults.worker import Worker, workers
from tests.models import Effect
from tests.servers import wait_for


@pytest.mark.quick
@pytest.mark.brokers("redis", "rabbitmq")
@guard(*SUSPECTS, case="redis")
@guard(*DUE)
def test_broker_killed_and_restarted_under_load(ledger, broker):
    """Redis comes back empty, RabbitMQ with what it wrote; what was enqueued meanwhile was never published.

    Guard: the relay looks for lost messages (``Suspects.publish_again``), and publishes what did not leave
    (``Relay._publish_due``).
    """
    ledger.enqueue(400)
    with workers(2):
        with ledger.load(100):
            ledger.wait_effects(20)
            assert broker.depth() > 100
            broker.kill()
            ledger.wait_committed(50)
            broker.start()
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.brokers("redis", "rabbitmq")
@guard(
    "jobs/consumer.py",
    "c.on_connection_error_after_connected = _despite_leftovers(c.on_connection_error_after_connected)",
    "pass",
    case="redis",
)
@guard("jobs/consumer.py", "message.ack_log_error = _despite_leftovers(message.ack_log_error)", "pass", case="redis")
def test_broker_restarted_again_and_again_while_bodies_run(ledger, broker, tmp_path):
    """Their messages are not acknowledged, and the worker waits for more of them, or for commands.

    Guard: the worker gets over what kombu leaves behind of a lost connection (``consumer.ConsumerStep``).
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    ledger.enqueue(300)
    with Worker() as worker:
        long = tasks.waits.delay("long", str(started), str(gate))
        ledger.note("long", long)
        wait_for(started.exists, 30, "the body runs")
        for _ in range(6 if broker.name == "redis" else 2):
            ledger.enqueue(5)
            ledger.wait_effects(1)
            broker.kill()
            broker.start()
        gate.touch()
        ledger.check(within=LOST_MESSAGES)
        assert worker.main.is_alive


@pytest.mark.quick
@guard(*SUSPECTS)
def test_broker_forgets_all_messages(ledger, broker):
    """FLUSHALL, or a purge, with most jobs published and not yet started.

    Guard: the relay looks for lost messages (``Suspects.publish_again``).
    """
    ledger.enqueue(400)
    with workers(2):
        ledger.wait_effects(20)
        assert broker.drop_messages() > 100
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.brokers("rabbitmq")
@guard(*SUSPECTS)
def test_broker_comes_back_on_an_empty_disk(ledger, broker):
    """No message, no queue and no binding is left; workers and publishers make them again.

    Guard: the relay looks for lost messages (``Suspects.publish_again``).
    """
    ledger.enqueue(400)
    with workers(2):
        with ledger.load(100):
            ledger.wait_effects(20)
            assert broker.depth() > 100
            broker.kill()
            broker.start_empty()
        ledger.check(within=LOST_MESSAGES)


def outage(ledger, broker, how: str, seconds: float) -> None:
    """The broker refuses connections, or takes them and never answers, while callers and workers go on."""
    broker.kill() if how == "refuses" else broker.pause()
    time.sleep(seconds)
    ledger.wait_committed(50)
    broker.start() if how == "refuses" else broker.resume()


@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("how", [again("refuses"), "hangs"])
@guard(*DUE, case="refuses")
@guard(*BREAKER, case="hangs")
@guard("jobs/conf.py", '"broker_connection_max_retries": None', '"broker_connection_max_retries": 1', case="refuses")
def test_broker_down_for_long_under_load(ledger, broker, settings, caplog, how):
    """For several times the patience of the breaker and of the relay; of all callers only few notice.

    Guard: the breaker (``publisher._Breaker``), the relay (``Relay._publish_due``), and workers that outlive their
    broker (``broker_connection_max_retries``).
    """
    settings.JOBS = {**settings.JOBS, "BREAKER": 3.0}
    down = 5 * conf().GRACE
    with workers(2) as both:
        with ledger.load(300):
            ledger.wait_effects(20)
            outage(ledger, broker, how, down)
        ledger.check(within=LOST_MESSAGES)
        assert all(worker.main.is_alive for worker in both)
    ledger.callers_were_served(caplog)


@pytest.mark.long
@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("how", ["refuses", "hangs"])
@guard(*BREAKER, case="hangs")
def test_broker_down_for_two_minutes(ledger, broker, settings, caplog, how):
    """As above, in real time; ``python -m tests.faults.unguarded`` leaves it out.

    Guard: the breaker (``publisher._Breaker``).
    """
    settings.JOBS = {**settings.JOBS, "BREAKER": 30.0}
    with workers(2) as both:
        with ledger.load(300, pace=20):
            ledger.wait_effects(20)
            outage(ledger, broker, how, 120)
        # All that came in meanwhile has to be done as well.
        ledger.check(within=LOST_MESSAGES + 60, copies=60)
        assert all(worker.main.is_alive for worker in both)
    ledger.callers_were_served(caplog)


@pytest.mark.brokers("rabbitmq")
@guard(
    "jobs/publisher.py",
    '"confirm_publish": True, "read_timeout": answer_timeout, "write_timeout": answer_timeout',
    '"confirm_publish": True, "read_timeout": None, "write_timeout": None',
)
@guard(*DUE)
def test_memory_alarm(ledger, broker, caplog):
    """RabbitMQ takes no message and says nothing; callers go on, and all is published when it has room again.

    Guard: each read of a publisher's connection is bounded (``publisher._Broker``), and the relay publishes what did
    not leave (``Relay._publish_due``).
    """
    with workers(2):
        with ledger.load(300):
            ledger.wait_effects(20)
            broker.alarm()
            ledger.wait_committed(200)
            broker.calm()
        ledger.check(within=LOST_MESSAGES)
    ledger.callers_were_served(caplog)


@pytest.mark.brokers("rabbitmq")
@guard(
    "jobs/publisher.py",
    '"confirm_publish": True, "read_timeout": answer_timeout',
    '"confirm_publish": False, "read_timeout": answer_timeout',
)
@guard("jobs/publisher.py", "except broker.full_errors as exc:", "except () as exc:")
def test_queue_is_full(ledger, broker, settings):
    """The queue refuses messages while 20 wait: what it refused comes as soon as there is room.

    Guard: publishers wait for the broker's confirmation (``publisher._Broker``).
    """
    settings.JOBS = {**settings.JOBS, "GRACE": 60.0}
    with workers(2):
        ledger.enqueue(10)
        ledger.wait_effects(10)
        broker.limit_queue(20)
        with ledger.load(300):
            ledger.enqueue(300)
            assert broker.depth() <= 20
        ledger.check(within=WORK)


@pytest.mark.brokers("redis", "rabbitmq")
@guard(*LEFT)
def test_producer_with_a_wrong_broker(ledger, broker, settings, caplog):
    """A web process looks for a virtual host that is not there; its jobs are published by the workers.

    Guard: what a caller could not publish is left to the relay (``publisher.publish_inline``).
    """
    settings.JOBS = {**settings.JOBS, "GRACE": 60.0}
    with workers(2):
        with callers_use(elsewhere(broker)):
            ledger.enqueue(300)
        ledger.check(within=WORK)
    ledger.callers_were_served(caplog)


@pytest.mark.brokers("redis", "rabbitmq")
@guard(
    "jobs/maintenance/relay.py",
    "self.trouble = trouble\n                break",
    "pass",
    also=[("jobs/maintenance/relay.py", "lifecycle.undispatch([job.pk for job in left], using)", "pass")],
)
def test_worker_with_a_wrong_broker(ledger, broker, settings):
    """One of two workers looks for a virtual host that is not there: it says so, and takes nothing from the other.

    Guard: a relay that cannot reach its broker leaves the rows to others (``Relay._publish_due``).
    """
    settings.JOBS = {**settings.JOBS, "GRACE": 60.0}
    with Worker(CELERY_BROKER_URL=elsewhere(broker), wait=False) as lost, Worker():
        lost.said("vhost" if broker.name == "rabbitmq" else "DB index")
        for _ in range(10):
            ledger.enqueue(30, countdown=0.1)
            time.sleep(0.1)
        ledger.check(within=WORK)


@guard(
    "jobs/publisher.py",
    "waiting = refused.unsent",
    "waiting = []",
    case="rabbitmq",
)
@guard("jobs/publisher.py", 'how.setdefault("mandatory", True)', "pass", case="rabbitmq")
@guard(*SUSPECTS, case="redis")
def test_exchange_that_leads_nowhere(ledger, broker, settings):
    """Jobs are routed to an exchange that is not there, or that no queue is bound to: they are in nobody's way, say
    what is wrong with them (where the broker does), and run when there is a way.

    Guard: a message that the broker refuses does not stop the others (``publisher.publish``), one without a queue is
    refused (``publisher.send``); what disappears is published again (``Suspects.publish_again``).
    """
    missing, unbound = (f"{name}-{uuid.uuid4()}" for name in ("missing", "unbound"))
    broker.declare_exchange(unbound)
    if broker.name == "rabbitmq":
        settings.JOBS = {**settings.JOBS, "GRACE": 60.0}
    ways = [{"exchange": name, "routing_key": "somewhere"} for name in (missing, unbound)]
    lost = [ledger.enqueue(20, **way, countdown=countdown) for way in ways for countdown in (0, 1)]
    others = ledger.enqueue(300, countdown=1)
    waiting = Job.objects.exclude(state="succeeded")
    with workers(2):
        wait_for(lambda: Effect.objects.count() == len(others), WORK, "the others are done")
        assert waiting.count() == sum(map(len, lost))
        if broker.name == "rabbitmq":
            wait_for(
                lambda: not waiting.filter(error__isnull=True).exists(), 10, "an error says where each wanted to go"
            )
        for exchange in (missing, unbound):
            broker.bind(exchange, "somewhere")
        # The pause of what was refused is a minute.
        waiting.filter(state="scheduled").update(run_at=lifecycle.now_plus(0))
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("strategy", ["round-robin", "shuffle"])
@guard(*SUSPECTS, case="redis")
@guard("jobs/publisher.py", "tries = max(1, len(connection.alt))", "tries = 1", case="round-robin")
def test_failover_and_back(ledger, broker, spare, use_broker, monkeypatch, strategy):
    """Two brokers in the list: the first one dies, then the second one while the first one is there again.

    Guard: publishers try each broker of the list (``publisher._Broker.connect``), and what a dead broker took along is
    published again (``Suspects.publish_again``).
    """
    monkeypatch.setenv("JOBS_TEST_CELERY", json.dumps({"broker_failover_strategy": strategy}))
    use_broker(f"{broker.url};{spare.url}")
    current_app.conf.broker_failover_strategy = strategy
    ledger.enqueue(300)
    with workers(2):
        with ledger.load(100):
            ledger.wait_effects(20)
            broker.kill()
            ledger.wait_effects(150)
            broker.start()
            ledger.wait_committed(50)
            spare.kill()
            ledger.wait_effects(50)
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.brokers("redis", "rabbitmq")
@guard("jobs/consumer.py", "c.timer.call_repeatedly(GO_BACK, _go_back, (c,))", "pass")
def test_failover_of_workers_alone(ledger, broker, spare, use_broker):
    """The first broker was away while nobody enqueued: the workers are at the second one, and callers at the first.

    Guard: workers go back to the first broker of their list (``consumer._go_back``).
    """
    use_broker(f"{broker.url};{spare.url}")
    with workers(2) as both:
        wait_for(lambda: all(" ready." in worker.text() for worker in both), 40, "the workers are ready")
        broker.kill()
        for worker in both:
            worker.said(f"127.0.0.1:{spare.server.port}")
        broker.start()
        ledger.enqueue(300)
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.brokers("redis", "rabbitmq")
@guard("jobs/publisher.py", "if connection.connected and is_elsewhere(connection) and", "if False and")
def test_failover_of_callers_alone(ledger, broker, spare, use_broker, settings):
    """The first broker was away while no worker ran: callers are at the second one, and the new workers at the first.

    Guard: publishers go back to the first broker of their list (``publisher._Broker.connect``).
    """
    settings.JOBS = {**settings.JOBS, "GRACE": 12.0}
    use_broker(f"{broker.url};{spare.url}")
    broker.kill()
    ledger.enqueue(10)
    assert spare.depth() >= 10
    broker.start()
    with workers(2):
        # What went to the second broker is published again after its grace.
        ledger.wait_effects(10)
        ledger.enqueue(300)
        ledger.check(within=conf().GRACE - 3)


def elsewhere(broker) -> str:
    return (
        broker.url.removesuffix("//") + "/later" if broker.name == "rabbitmq" else broker.url.removesuffix("0") + "99"
    )
