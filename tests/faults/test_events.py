"""Two services tell each other of events, and one of them dies, or what is between them does its worst."""

from __future__ import annotations

import random

import amqp
import pytest

from jobs.contrib.event_broker.amqp import queue_of
from jobs.events import store
from jobs.events.models import Event
from shop.events import order_paid
from tests.faults.guards import Without, guard
from tests.faults.handlers import HANDLERS, other
from tests.faults.ledger import LEAST, LOST_CHILD, LOST_WORKER, WORK
from tests.faults.manner import again
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.databases("postgres", "sqlite"), pytest.mark.brokers("jobs")]

over_rabbitmq = pytest.mark.parametrize("services", ["rabbitmq"], indirect=True)

#: What is missing between two services is seen, and sent again.
GAPS = "jobs.contrib.event_broker.receiver:Gaps.look"
#: Who ends a job lets in the next one of its order; or else a tick of the clock does.
NEXT = "jobs.events.order:release_next"
STUCK = "jobs.events.order:release_stuck"


@pytest.mark.quick
@pytest.mark.parametrize("point", ["before_relay", "after_relay"])
@guard(Without("jobs.events.relay:hand_on", call="update"), case="shared sqlite after_relay")
def test_who_hands_events_on_is_killed(services, point):
    """The jobs of the handlers, or the numbers of the messages, are written, and not committed; or just committed.

    Guard: the note that an event was handed on is in the commit of the jobs.
    """
    services.subscribe()
    services.tell()
    with services.shop(sync=f"{point}=pause") as worker:
        worker.reached(point)
        worker.kill()
    with services.shop(), services.loyalty():
        services.tell(50)
        services.check(within=LOST_WORKER)


@over_rabbitmq
@pytest.mark.parametrize("point", ["before_publish", "after_publish"])
@guard(
    Without(
        "jobs.contrib.event_broker.publisher:Publisher._send",
        "self.open(), Event.objects.using(using).filter(pk__in=[row.pk for row in rows]).update(sent_at=Now())",
        call="self.open",
    ),
    GAPS,
    case="before_publish sqlite",
)
def test_who_publishes_events_is_killed(services, point):
    """After the confirms and before the note of them all is published again.

    Guard: an event counts as sent after the broker's confirm; behind it, the numbers, by which the other side sees what
    it misses.
    """
    services.subscribe()
    services.tell()
    with services.shop(sync=f"{point}=pause") as worker:
        worker.reached(point)
        worker.kill()
    with services.shop(), services.loyalty():
        services.tell(50)
        services.check(within=LOST_WORKER)


@over_rabbitmq
@pytest.mark.parametrize("point", ["before_store", "after_store"])
@guard(
    Without(
        "jobs.contrib.event_broker.receiver:Receiver.work",
        "self.channel.basic_consume(self._queue, callback=self._note, no_ack=True)",
        call="self.channel.basic_consume",
    ),
    GAPS,
    case="before_store sqlite",
)
def test_who_receives_events_is_killed(services, point):
    """Before the commit of what arrived, or before it is acknowledged.

    Guard: messages are acknowledged after the commit; behind it, the numbers.
    """
    with services.shop():
        with services.loyalty(sync=f"{point}=pause") as worker:
            services.subscribed(worker)
            services.tell()
            worker.reached(point)
            worker.kill()
        with services.loyalty():
            services.tell(50)
            services.check(within=LOST_WORKER)


@pytest.mark.parametrize(
    "point", ["before_commit", "after_completion", again("before_claim"), again("after_claim"), "after_commit"]
)
@guard(STUCK, case="after_commit shared sqlite")
def test_a_handlers_process_is_killed(services, point):
    """And what waits behind it in its order goes on, once it was done.

    Guard: a tick lets in the next job of an order whose process died before it could.
    """
    services.subscribe()
    services.tell()
    with services.shop(), services.loyalty(sync=f"{point}=kill") as worker, services.loyalty():
        worker.reached(point)
        services.check(within=LOST_CHILD)


@pytest.mark.quick
@pytest.mark.parametrize("side", ["shop", "loyalty"])
@guard("jobs.maintenance.rescue:rescue_all", case="loyalty shared")
def test_workers_are_killed_at_any_moment(services, side):
    """Whole workers, again and again, while events are told.

    Guard: the rescue by heartbeat.
    """
    start = getattr(services, side)
    with services.shop(), services.loyalty() as worker:
        services.subscribed(worker)
        for _ in range(3):
            with start() as victim:
                services.tell(100)
                services.wait_awards(services.count // 2)
                victim.kill()
        services.check(within=LOST_WORKER)


@over_rabbitmq
@guard(
    Without("jobs.contrib.event_broker.inbox:_turn", "False", clause="event.number > max(position.number, missing) + 1")
)
def test_messages_arrive_doubled_and_shuffled(services):
    """As after a redelivery, and of several senders.

    Guard: what comes before its turn is parked.
    """
    services.subscribe()
    services.tell()
    with services.shop():
        wait_for(lambda: not Event.objects.filter(sent_at=None).exists(), 30, "all are sent")
        shuffle(services.rabbitmq.port, queue_of("loyalty"))
        with services.loyalty():
            services.check(within=WORK)


def shuffle(port: int, queue: str) -> None:
    """Double the messages of a queue, and put them in any order."""
    with amqp.Connection(f"127.0.0.1:{port}") as connection:
        channel = connection.channel()
        messages = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            messages += [message] * 2
        assert len(messages) >= 2 * LEAST
        random.shuffle(messages)
        for each in messages:
            again = amqp.Message(each.body, **each.properties)
            channel.basic_publish(again, routing_key=queue)


@over_rabbitmq
@pytest.mark.parametrize("how", ["killed", "emptied"])
@guard(GAPS, case="emptied sqlite")
def test_the_broker_is_killed_after_its_confirm(services, how):
    """And comes back with what it had, or with nothing.

    Guard: what is missing is asked for, and sent again.
    """
    services.subscribe()
    with services.shop() as shop:
        services.tell()
        wait_for(lambda: not Event.objects.filter(sent_at=None).exists(), 30, "all are confirmed")
        services.rabbitmq.kill()
        if how == "emptied":
            services.rabbitmq.wipe()
        services.tell(50)
        services.rabbitmq.start()
        with services.loyalty():
            services.check(within=LOST_WORKER)
        assert shop.main.is_alive


@guard(Without("jobs.lifecycle.transitions:wait", "False", clause="limit is not None"), case="shared sqlite")
def test_poison_among_good_events(services):
    """An event that always kills the process of one of its handlers: the other one, and all other events, go on.

    Guard: a job that has crashed ``max_crashes`` times ends ``failed``.
    """
    with services.shop(), services.loyalty(**{HANDLERS: "poison"}) as worker:
        services.subscribed(worker, 3)
        services.tell(150)
        order_paid(services.customers[0], services.customers[0], 0)
        services.told[services.customers[0]].append(0)
        services.tell(150)
        services.check(within=2 * LOST_CHILD, failed={"tests.faults.handlers.note_too": 1})
    good = {other(key): [each for each in numbers if each] for key, numbers in services.told.items()}
    assert services.awarded(good) == good


@guard(NEXT, STUCK, case="shared sqlite")
def test_an_event_that_does_not_fit_its_handler(services):
    """Somebody wrote it past its declaration: its handling fails, and nobody else's.

    Guard: also a job that failed lets in the next one of its order; behind it, a tick.
    """
    with services.shop(), services.loyalty() as worker:
        services.subscribed(worker)
        services.tell(150)
        key = str(services.customers[0])
        store.insert("default", "shop.order.paid", 1, {"customer": key, "cents": "a lot"}, key, {})
        services.tell(150)
        services.check(within=WORK, failed={"shop.loyalty.handlers.award_points": 1})


@guard("jobs.events.relay:subscribe", case="shared sqlite")
def test_a_handler_is_added_while_the_backlog_runs(services):
    """It gets all that is told after its deploy; the one that was there before misses nothing.

    Guard: a worker writes what its code subscribes to when it starts.
    """
    services.subscribe()
    services.tell(600)
    with services.shop(), services.loyalty() as old:
        services.wait_awards(50)
        with services.loyalty(**{HANDLERS: "late"}) as new:
            services.subscribed(new, 3)
            assert old.stop() == 0
            missed = {key: len(numbers) for key, numbers in services.told.items()}
            services.tell(100)
            services.check(within=WORK)
    for key, numbers in services.told.items():
        late = services.awarded([other(key)])[other(key)]
        assert late == numbers[-len(late) :]
        assert len(late) >= len(numbers) - missed[key]


@pytest.mark.parametrize(
    "orders",
    [
        pytest.param(2_000, marks=pytest.mark.quick),
        pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1800, method="signal")]),
    ],
)
@guard(Without("jobs.events.store:busy", "set()"), case="2000 shared sqlite")
def test_many_events(services, orders):
    """Told before anybody is there to take them.

    Guard: a job waits behind those of its order that are out.
    """
    services.subscribe()
    services.tell(orders, size=500)
    with services.shop(), services.loyalty(concurrency=2):
        services.check(within=WORK + orders / 100)
