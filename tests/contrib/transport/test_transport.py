"""The broker that needs no server: ``jobs://``, messages as rows."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest
from celery import current_app
from django.conf import settings
from django.db import OperationalError, connection
from kombu import Connection, Exchange, Queue

from jobs.contrib.checks import system as checks
from jobs.contrib.transport import store
from jobs.contrib.transport.transport import BUSY_POLL, IDLE_POLL
from jobs.models import Node
from jobs.store import databases
from jobs.store.databases import SideDatabase
from tests import tasks
from tests.helpers import checked
from tests.helpers.harness import ROOT, Worker, effects, environment, in_body, wait_ended
from tests.helpers.servers import wait_for

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.core,
    pytest.mark.skipif(settings.CELERY_BROKER_URL != "jobs://", reason="another broker"),
]


@pytest.fixture
def broker():
    with Connection("jobs://") as connection:
        yield connection


def receive(consumer: Connection, timeout: float = 1.0) -> bool:
    try:
        consumer.drain_events(timeout=timeout)
    except TimeoutError:
        return False
    return True


def rows() -> int:
    side = SideDatabase()
    with side.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM jobs_message")
        [count] = cursor.fetchone()
    side.close()
    return count


def test_an_acknowledgement_after_the_connection_was_lost_is_a_lost_connection(broker):
    """Anything else would be a traceback per job in the worker's log."""
    queue = Queue("t1")(broker.default_channel)
    queue.declare()
    broker.Producer().publish({"n": 1}, routing_key="t1")
    message = queue.get()
    broker.default_channel.close()
    with pytest.raises(broker.connection_errors):
        message.ack()
    with broker.channel() as channel:
        queue(channel).get().ack()
    assert rows() == 0


def test_it_is_not_connected_while_its_database_is_away(broker, monkeypatch):
    """Celery would say that it is, find that it is not, and begin again at once, five times a second."""

    def refuse(*args):
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(SideDatabase, "execute", refuse)
        with pytest.raises(OperationalError, match="connection refused"):
            broker.connect()
        assert not broker.connected
    broker.connect()
    assert broker.connected


def test_a_quiet_consumer_asks_seldom_and_once_for_all_its_queues(broker, monkeypatch):
    """Celery waits half a second at a time, for ever."""
    looks = []
    real = SideDatabase.execute
    monkeypatch.setattr(SideDatabase, "execute", lambda *args: (looks.append(args[1]), real(*args))[1])
    with broker.Consumer([Queue(f"t{number}") for number in range(4)], callbacks=[lambda *args: None]):
        assert not receive(broker)
        looks.clear()
        began = time.monotonic()
        for _ in range(4):
            assert not receive(broker)
        assert len(looks) <= (time.monotonic() - began) / IDLE_POLL + 8
        # The first look after a message is soon again.
        broker.Producer().publish({"n": 1}, routing_key="t3")
        assert receive(broker)
    assert broker.transport._pause == BUSY_POLL


def test_a_message_is_there_until_it_is_acknowledged(broker):
    queue = Queue("t1")(broker.default_channel)
    queue.declare()
    broker.Producer().publish({"n": 1}, routing_key="t1")
    message = queue.get()
    assert message.payload == {"n": 1}
    assert queue.get() is None, "hidden while it is held"
    assert rows() == 1
    message.ack()
    assert rows() == 0


def test_a_message_keeps_what_other_transports_keep(broker):
    """kombu's JSON knows more than Python's."""
    queue = Queue("t1")(broker.default_channel)
    queue.declare()
    headers = {"tenant": uuid.uuid4(), "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}
    broker.Producer().publish({}, routing_key="t1", headers=headers)
    message = queue.get()
    assert message.headers == headers
    message.ack()


def test_a_requeued_message_comes_back_at_once_and_says_so(broker):
    queue = Queue("t1")(broker.default_channel)
    broker.Producer().publish({"n": 1}, routing_key="t1")
    queue.get().requeue()
    message = queue.get()
    assert message.delivery_info["redelivered"] is True
    message.reject()
    assert rows() == 0


def test_a_holder_that_stopped_renewing_loses_the_message(broker, monkeypatch):
    monkeypatch.setattr(store, "LEASE", 0.3)
    queue = Queue("t1")(broker.default_channel)
    broker.Producer().publish({"n": 1}, routing_key="t1")
    first = queue.get()
    second = wait_for(queue.get, 5, "the lease ran out")
    first.ack()
    assert rows() == 1, "the first holder's acknowledgement came too late to count"
    second.ack()
    assert rows() == 0


def test_a_consumer_that_drains_keeps_what_it_holds(broker, monkeypatch):
    monkeypatch.setattr(store, "LEASE", 0.4)
    with Connection("jobs://") as other:
        held = []
        with broker.Consumer(Queue("t1"), callbacks=[lambda body, message: held.append(message)], prefetch_count=1):
            other.Producer().publish({"n": 1}, routing_key="t1")
            assert receive(broker)
            rival = Queue("t1")(other.default_channel)
            for _ in range(8):
                receive(broker, 0.15)
                assert rival.get() is None
            held[0].ack()
    assert rows() == 0


def test_consumers_side_by_side_get_each_message_once():
    with Connection("jobs://") as producer:
        for n in range(100):
            producer.Producer().publish({"n": n}, routing_key="t1")
    got: list[int] = []

    def consume():
        with Connection("jobs://") as mine:
            queue = Queue("t1")(mine.default_channel)
            while (message := queue.get()) is not None:
                got.append(message.payload["n"])
                message.ack()

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(100))


def test_zero_is_the_highest_priority_as_on_redis(broker):
    queue = Queue("t1")(broker.default_channel)
    for priority in (9, 0, 5):
        broker.Producer().publish({"p": priority}, routing_key="t1", priority=priority)
    order = []
    while message := queue.get(no_ack=True):
        order.append(message.payload["p"])
    assert order == [0, 5, 9]


def test_topic_and_fanout_exchanges_reach_queues_bound_by_others():
    with Connection("jobs://") as consumer, Connection("jobs://") as producer:
        topic, everyone = Exchange("topics", type="topic"), Exchange("everyone", type="fanout")
        bound = [
            Queue("t1", topic, routing_key="a.#")(consumer.default_channel),
            Queue("t2", everyone)(consumer.default_channel),
            Queue("t3", everyone)(consumer.default_channel),
        ]
        for queue in bound:
            queue.declare()
        producer.Producer().publish({"to": "topic"}, exchange=topic, routing_key="a.b", declare=[topic])
        producer.Producer().publish({"to": "none"}, exchange=topic, routing_key="b.a", declare=[topic])
        producer.Producer().publish({"to": "all"}, exchange=everyone, declare=[everyone])
        received = [[m.payload["to"] for m in iter(lambda q=queue: q.get(no_ack=True), None)] for queue in bound]
    assert received == [["topic"], ["all"], ["all"]]


def test_size_counts_what_waits(broker):
    channel = broker.default_channel
    for n in range(3):
        broker.Producer().publish({"n": n}, routing_key="t1")
    queue = Queue("t1")(channel)
    queue.get()
    assert channel.queue_declare("t1", passive=True).message_count == 2
    assert queue.purge() == 2, "what is held stays"


@pytest.mark.slow
def test_killed_worker_loses_no_message_that_it_held():
    """Prefetched and running messages of a worker that was killed come back to another."""
    with Worker(concurrency=1) as first:
        results = tasks.effect.delay_many([(f"k{n}",) for n in range(30)])
        wait_for(lambda: len(effects()) >= 3, 20, "some ran")
        first.kill()
    with Worker():
        wait_ended(*[result.id for result in results], timeout=40)
    assert effects() == {f"k{n}": 1 for n in range(30)}


@pytest.mark.slow
def test_remote_control_reaches_a_worker(tmp_path):
    """``celery inspect ping`` and ``active``, ``celery control revoke`` and ``add_consumer``."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as worker:
        name = f"{worker.directory.name}@{socket.gethostname()}"
        inspect, control = current_app.control.inspect([name], timeout=5), current_app.control
        assert wait_for(inspect.ping, 15, "ping") == {name: {"ok": "pong"}}
        assert f"->  {name}: OK" in celery("inspect", "ping")

        held = tasks.waits.delay("held", str(started), str(gate))
        in_body(held.id, started)
        assert [job["id"] for job in inspect.active()[name]] == [held.id]

        revoked = tasks.effect.delay("revoked")
        [answer] = control.revoke(revoked.id, reply=True, destination=[name], timeout=5)
        assert "ok" in answer[name]
        [answer] = control.add_consumer("another", reply=True, destination=[name], timeout=5)
        assert "ok" in answer[name]
        elsewhere = tasks.effect.apply_async(("elsewhere",), queue="another")
        wait_for(lambda: "another" in Node.objects.get(pk=worker.node.pk).queues, 10, "the node says that it consumes")
        gate.touch()
        jobs = wait_ended(held.id, revoked.id, elsewhere.id)
        control.cancel_consumer("another", destination=[name])
        wait_for(lambda: "another" not in Node.objects.get(pk=worker.node.pk).queues, 10, "and that it does no more")
    assert [job.state for job in jobs] == ["succeeded", "cancelled", "succeeded"]
    assert jobs[1].error["type"] == "Revoked"
    assert effects() == {"held": 1, "elsewhere": 1}


def celery(*command: str) -> str:
    """The command as a user types it: a process that loads the Celery app, and no Django."""
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "shop", *command],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.slow
def test_a_replaced_child_does_not_disturb_the_parents_connection(tmp_path):
    """The parent forks again after a child's death, while it holds the connection that it polls with."""
    with Worker(concurrency=2) as worker:
        for round_ in range(3):
            killer = tasks.kills_once.delay(f"round-{round_}", str(tmp_path / f"killed-{round_}"))
            wait_ended(killer.id)
        after = tasks.effect.delay_many([(f"k{n}",) for n in range(20)])
        wait_ended(*[result.id for result in after])
        assert worker.process.poll() is None
    assert sum(effects().values()) == 23


def test_no_connection_is_open_across_a_fork():
    side = SideDatabase()
    with side.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert side._connection is not None
    pid = os.fork()
    if pid == 0:
        os._exit(0 if side._connection is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert side._connection is None
    with side.cursor() as cursor:
        cursor.execute("SELECT 1")
    side.close()


def test_a_database_in_memory_is_refused(monkeypatch):
    if connection.vendor != "sqlite":
        pytest.skip("SQLite's own")
    from django.core.exceptions import ImproperlyConfigured

    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "NAME", ":memory:")
        with pytest.raises(ImproperlyConfigured, match="in memory"), SideDatabase().cursor():
            pass


@pytest.mark.parametrize("name", ["{}/main", "file:{}/main?cache=private", "file://{}/main"])
def test_only_its_owner_reads_the_second_file(monkeypatch, tmp_path, name):
    """Messages, progress and results of stock tasks are in it; and whoever writes it may give orders to workers."""
    if connection.vendor != "sqlite":
        pytest.skip("SQLite's own")
    before = os.umask(0)
    try:
        monkeypatch.setitem(connection.settings_dict, "NAME", name.format(tmp_path))
        with databases.side() as side:
            side.execute("INSERT INTO jobs_heartbeat (node, count, at) VALUES (%s, 1, 1)", Node().pk.hex)
            modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("main.broker*")}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("main.broker", "main.broker-wal", "main.broker-shm"), "0o600")


def test_the_group_of_a_worker_dies_with_it():
    with Worker(concurrency=2) as worker:
        assert len(worker.pids()) == 5, "main, watchdog, supervisor, two children"
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        wait_for(lambda: not worker.pids(), 15, "nobody is left")


def test_the_checks_have_nothing_to_say_about_it():
    own = checked.app("jobs://")
    own.task(name="t.job")(checked.body)
    assert checks.check_celery(own) == []
    assert checks.for_worker(checked.worker(own)) == []


def test_purge_leaves_what_a_consumer_holds(broker):
    queue = Queue("t1")(broker.default_channel)
    queue.declare()
    for number in range(3):
        broker.Producer().publish({"n": number}, routing_key="t1")
    held = queue.get()
    assert queue.purge() == 2
    held.requeue()
    assert queue.get().payload == {"n": 0}
    queue.delete()
    assert rows() == 0
