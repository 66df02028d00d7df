"""A broker can do nothing to jobs, whatever becomes of it. What is no job comes back with it."""

from __future__ import annotations

import time

import pytest
from celery import current_app

from jobs.models import Job
from tests import tasks
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, WORK
from tests.faults.manner import again
from tests.faults.worker import Worker
from tests.helpers.servers import wait_for
from tests.models import Effect

#: Seconds in which jobs are done that nothing stands in the way of.
AT_ONCE = 5.0


def goes_on(ledger, worker: Worker, within: float = AT_ONCE) -> None:
    """Jobs are done as if nothing was, also when all processes of the pool have died."""
    ledger.enqueue(50)
    ledger.check(within=within)
    children = wait_for(lambda: worker.children, 10, "the worker has children")
    for child in children:
        child.kill()
    ledger.enqueue(50)
    ledger.check(within=AT_ONCE)
    wait_for(lambda: len(worker.children) == len(children), 5, "all have been replaced")
    ledger.callers_were_served()
    assert worker.main.is_alive


def comes_back() -> None:
    """Stock tasks run again."""
    tasks.stock.delay("stock")
    effect = Effect.objects.filter(key="stock")
    wait_for(effect.exists, WORK, "a stock task")
    # It is not in the books.
    effect.delete()


def take_away(broker, how: str) -> None:
    broker.kill() if how == "refuses" else broker.pause()


def give_back(broker, how: str) -> None:
    broker.start() if how == "refuses" else broker.resume()


@pytest.mark.quick
@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("how", ["refuses", again("hangs")])
@guard("jobs.contrib.broker_outages.outages:_replace_dead", case="refuses")
@guard("jobs.contrib.broker_outages.outages:_replace_in_call", case="hangs")
def test_broker_away_from_the_start(ledger, broker, how):
    """It refuses connections, or takes them and never answers.

    Guard: the pool's processes claim by themselves, and are replaced while Celery looks for its broker.
    """
    ledger.enqueue(300)
    take_away(broker, how)
    with Worker(wait=False) as worker:
        goes_on(ledger, worker, within=WORK)
        give_back(broker, how)
        comes_back()
        goes_on(ledger, worker)


@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.parametrize("how", ["refuses", again("hangs")])
@guard("jobs.contrib.broker_outages.outages:_replace_dead", case="refuses")
def test_broker_away_during_the_run(ledger, broker, how):
    """As above; with a stock task before and after it.

    Guard: the pool's processes claim by themselves, and are replaced while Celery looks for its broker.
    """
    ledger.enqueue(300)
    with Worker() as worker:
        with ledger.load(300):
            take_away(broker, how)
            time.sleep(3)
        goes_on(ledger, worker)
        give_back(broker, how)
        comes_back()
        goes_on(ledger, worker)


@pytest.mark.brokers("redis")
def test_broker_restarted_again_and_again(ledger, broker):
    """Each time while the worker waits for its messages, or for commands.

    Guard: the worker gets over what kombu leaves behind of a lost connection.
    """
    ledger.enqueue(300)
    with Worker() as worker:
        for _ in range(6):
            ledger.enqueue(20)
            ledger.wait_effects(in_all=len(ledger.committed) - 10)
            broker.kill()
            broker.start()
        goes_on(ledger, worker)
        comes_back()


@pytest.mark.brokers("redis", "rabbitmq")
@guard(Without("jobs.contrib.broker_outages.outages:_despite_leftovers", "action"), case="redis")
def test_broker_restarted_while_a_stock_body_runs(ledger, broker, tmp_path):
    """The body's message cannot be acknowledged any more, on a connection that is gone; RabbitMQ delivers it again.

    Guard: the worker gets over what kombu leaves behind of a lost connection.
    """
    ledger.enqueue(300)
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=6) as worker:
        tasks.stock_waits.delay("stock body", str(started), str(gate))
        wait_for(started.exists, WORK, "the stock body runs")
        for number in range(3):
            broker.kill()
            broker.start()
            tasks.stock.delay(f"beside it {number}")
            wait_for(Effect.objects.filter(key=f"beside it {number}").exists, WORK, "the worker is back")
        gate.touch()
        wait_for(Effect.objects.filter(key="stock body").exists, WORK, "the stock body ends")
        comes_back()
        Effect.objects.filter(key__startswith="stock").delete()
        Effect.objects.filter(key__startswith="beside").delete()
        goes_on(ledger, worker)


@pytest.mark.quick
def test_broker_emptied(ledger, broker):
    """FLUSHALL, or a purge: it held no job.

    Guard: the row is the queue, and only a caller's commit makes one.
    """
    with Worker() as worker:
        with ledger.load(300):
            for _ in range(5):
                broker.drop_messages()
                time.sleep(0.2)
        goes_on(ledger, worker)
        comes_back()


@pytest.mark.brokers("redis", "rabbitmq")
@guard("jobs.contrib.broker_outages.outages:_replace_dead", case="redis")
def test_broker_that_refuses_the_worker(ledger, broker):
    """The worker looks for a virtual host that is not there, and says so.

    Guard: the pool's processes claim by themselves, and are replaced while Celery looks for its broker.
    """
    ledger.enqueue(300)
    with Worker(CELERY_BROKER_URL=elsewhere(broker), wait=False) as worker:
        worker.said("vhost" if broker.name == "rabbitmq" else "DB index")
        goes_on(ledger, worker, within=WORK)


def elsewhere(broker) -> str:
    return (
        broker.url.removesuffix("//") + "/later" if broker.name == "rabbitmq" else broker.url.removesuffix("0") + "99"
    )


@pytest.mark.quick
@pytest.mark.parametrize("point", ["before_receive", again("after_receive")])
@guard(Without("jobs.task:Task.on_bound", "_lost = False", clause="_lost = True"), case="before_receive")
@guard(Without("jobs.contrib.messages.receiving:insert", "", clause=", ignore_conflicts=True"), case="after_receive")
def test_process_killed_while_it_receives_a_call_by_name(ledger, point):
    """The message is acknowledged only after its row is committed, and then comes again: the row is there.

    Guard: a call by name is acknowledged late, and its row inserted once.
    """
    ledger.enqueue(300)
    for number in range(50):
        key = f"by name {number}"
        ledger.note(key, current_app.send_task("tests.tasks.effect", (key,)))
    with Worker(sync=f"{point}=kill") as worker:
        worker.reached(point)
        wait_for(lambda: Job.objects.count() == len(ledger.committed), LOST_CHILD, "all were adopted")
        # Whether its row is there or not, the message comes again.
        worker.said("WorkerLostError")
        time.sleep(2)
        ledger.check(within=LOST_CHILD)
    assert set(Job.objects.values_list("crashes", "node_losses")) == {(0, 0)}
