"""Events between services with databases of their own, over RabbitMQ: nothing lost, nothing twice, in their order."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import random
import re
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import amqp
import hypothesis
import pytest
from celery import current_app
from django.apps import apps
from django.db import Error, connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.utils import load_backend
from django.utils import timezone
from hypothesis import strategies as st

from jobs import store as stores
from jobs.contrib.event_broker import control, inbox, publisher, receiver, wire
from jobs.contrib.event_broker.amqp import (
    CONTROL,
    DIRECT,
    EXCHANGE,
    GONE,
    HELLO,
    POSITION,
    RESEND,
    ControlLink,
    direct_key,
    queue_of,
)
from jobs.contrib.event_broker.inbox import Delivery
from jobs.contrib.event_broker.models import Position
from jobs.contrib.event_operator import replay
from jobs.events import relay, store
from jobs.events.models import PARKED, UNSENT, Event, Relay, Subscription
from jobs.events.services import service
from jobs.lifecycle.worker_state import worker_state
from jobs.models import LIVE, Job, Node, tables
from jobs.store import databases
from jobs.testing import run_jobs
from tests.contrib.events import tasks as told
from tests.helpers.harness import ROOT, Worker, database_url, wait_reached
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.servers]

MOVED = "test.thing.moved"


@pytest.fixture(params=["rabbitmq"])
def broker(request, settings):
    """The broker of the events, without a queue; this process tells of events as the service ``shop``."""
    server = request.getfixturevalue("rabbitmq_server")
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": server.url}
    forget(server)
    yield server
    if not server.is_running:
        server.start()


def forget(server, *queues: str) -> None:
    """Delete these queues, or all that there is."""
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        for queue in queues or map(queue_of, ("shop", "loyalty")):
            channel.queue_delete(queue)
        if not queues:
            channel.exchange_delete(EXCHANGE)
            channel.exchange_delete(DIRECT)


@pytest.fixture
def loyalty(tmp_path, transactional_db) -> Iterator[str]:
    """The database of another service, on SQLite; the alias of this process for it."""
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    template = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "OPTIONS": options}
    connections.settings["loyalty"] = {**template, "NAME": str(tmp_path / "loyalty.sqlite3")}
    backend = load_backend("django.db.backends.sqlite3")
    wrapper = backend.DatabaseWrapper(connections.settings["loyalty"], NO_DB_ALIAS)
    connections["loyalty"] = connections[NO_DB_ALIAS] = wrapper
    try:
        with wrapper.schema_editor() as editor:
            for model in (*tables(), *apps.get_app_config("tests").get_models()):
                if not model._meta.proxy:
                    editor.create_model(model)
        with wrapper.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
        yield "loyalty"
    finally:
        wrapper.close()
        del connections["loyalty"], connections[NO_DB_ALIAS]
        del connections.settings["loyalty"]
        # The next one of this name may be of another kind.
        stores.of.cache_clear()


@contextlib.contextmanager
def running(broker, alias: str, sync: str = "", concurrency: int = 2) -> Iterator[Worker]:
    """A worker of the service whose database this is."""
    from django.conf import settings

    name, url = "shop", database_url()
    if alias != "default":
        name, url = alias, f"sqlite:///{connections[alias].settings_dict['NAME']}"
    said = {**settings.JOBS, "SERVICE": name, "EVENT_BROKER": broker.url}
    env = {"JOBS_TEST_SETTINGS": json.dumps(said), "DATABASE_URL": url}
    with Worker(concurrency=concurrency, wait=False, sync=sync, **env) as worker:
        wait_for(lambda: " ready." in worker.text(), 40, "the worker is ready")
        yield worker


def moved(alias: str) -> list[str]:
    rows = Effect.objects.using(alias).order_by("pk").values_list("key", flat=True)
    return [key for key in rows if key.startswith("moved:")]


def move(names: list[str], count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        for name in names:
            told.thing_moved(name, number)


def wait_bound(alias: str) -> None:
    """The service has told what its handlers want: from then on it misses nothing."""
    wait_for(lambda: Subscription.objects.using(alias).exists(), 20, "the handlers are known")


def assert_handled(alias: str, names: list[str], count: int, timeout: float = 60) -> None:
    """All is handled once, and that of each key in its order."""
    wait_for(lambda: len(moved(alias)) >= len(names) * count, timeout, f"{alias} has handled all")
    wait_for(lambda: not Job.objects.using(alias).filter(state__in=LIVE).exists(), 30, "all jobs have ended")
    found = moved(alias)
    assert sorted(found) == sorted(f"moved:{name}:{number}" for name in names for number in range(count))
    for name in names:
        assert [key for key in found if f":{name}:" in key] == [f"moved:{name}:{number}" for number in range(count)]


# Two services


@pytest.mark.slow
def test_services_with_celery_amqp_events_are_on_either_side(broker, loyalty, settings):
    """Declared as that package does it: a queue of each handler, bound to its exchange."""
    settings.JOBS = {**settings.JOBS, "EVENT_CELERY_EXCHANGE": "events"}
    with amqp.Connection(f"127.0.0.1:{broker.port}") as connection:
        channel = connection.channel()
        channel.exchange_declare("events", "topic", durable=True, auto_delete=False)
        queue = channel.queue_declare("billing.test.thing.moved", exclusive=True).queue
        channel.queue_bind(queue, "events", "test.thing.moved")
        with running(broker, "default"), running(broker, loyalty):
            wait_bound(loyalty)
            move(["a"], 2)
            for alias in ("default", loyalty):
                assert_handled(alias, ["a"], 2)
            sent = [wait_for(lambda: channel.basic_get(queue, no_ack=True), 20, "it is sent") for _ in range(2)]
            assert [message.headers["task"] for message in sent] == [MOVED] * 2
            assert [json.loads(message.body)[:2] for message in sent] == [
                [[], {"name": "a", "number": n}] for n in (0, 1)
            ]
            # Theirs, of a service that neither numbers nor names it.
            task = current_app.amqp.as_task_v2(str(uuid.uuid4()), MOVED, ("a", 2), {})
            properties = {"application_headers": task.headers, "content_type": "application/json"}
            channel.basic_publish(amqp.Message(json.dumps(task.body), **properties), "events", MOVED)
            for alias in ("default", loyalty):
                assert_handled(alias, ["a"], 3)
        assert channel.basic_get(queue, no_ack=True) is not None
        assert channel.basic_get(queue, no_ack=True) is None


def test_two_services_tell_each_other(broker, loyalty):
    """What one tells the other handles once, and each its own without the broker."""
    with running(broker, "default"), running(broker, loyalty):
        wait_bound(loyalty)
        move(["a", "b"], 10)
        other = outbox_of(loyalty, 1)
        assert_handled(loyalty, ["a", "b"], 10)
        assert_handled("default", ["a", "b"], 10)
        wait_for(lambda: Event.objects.filter(uuid=other).exclude(relayed_at=None).exists(), 20, "the other way")
        wait_for(lambda: Effect.objects.filter(key="made:from loyalty").exists(), 20, "handled")
    row = Event.objects.get(uuid=other)
    assert (row.source, row.name, row.number) == ("loyalty", "test.thing.made", 1)
    assert row.received_at is not None
    assert row.sent_at is None
    assert not Event.objects.filter(UNSENT).exists()
    assert Effect.objects.filter(key="made:from loyalty").count() == 1
    copies = Event.objects.using(loyalty).filter(name=MOVED)
    # The queue may have been bound after the first ones: they came later, and were handled before the others.
    assert sorted(copies.values_list("number", flat=True)) == list(range(1, 21))
    assert {row.uuid for row in copies} == {row.uuid for row in Event.objects.filter(name=MOVED)}


def test_a_replay_goes_to_the_queue_of_the_one_service(broker, loyalty):
    """To one that missed something, and with ``again`` to one that had it."""
    app = current_app._get_current_object()
    move(["a"], 2)
    relay.subscribe(app, "default")
    relay.hand_on(app, "default")
    with pytest.raises(ValueError, match="no queue events.loyalty"):
        replay.replay(app, replay.select("default", [MOVED]), "loyalty")
    # It was told before loyalty was there.
    Event.objects.update(sent_at=timezone.now())
    with running(broker, loyalty):
        wait_bound(loyalty)
        # It may be read before it is bound.
        wait_for(lambda: queue_is_read(broker, "loyalty"), 20, "its queue is read")
        wait_for(
            lambda: replay.replay(app, replay.select("default", [MOVED]), "loyalty")["sent"] == 2, 20, "it is bound"
        )
        assert_handled(loyalty, ["a"], 2)
        assert replay.replay(app, replay.select("default", [MOVED]), "loyalty", True, "n1")["sent"] == 2
        assert replay.replay(app, replay.select("default", [MOVED]), "loyalty", True, "n1")["sent"] == 2
        wait_for(lambda: len(moved(loyalty)) >= 4, 20, "it handled them once more")
        wait_for(lambda: not Job.objects.using(loyalty).filter(state__in=LIVE).exists(), 30, "all jobs have ended")
    assert sorted(moved(loyalty)) == ["moved:a:0", "moved:a:0", "moved:a:1", "moved:a:1"]


def queue_is_read(server, service: str) -> bool:
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection, contextlib.suppress(amqp.exceptions.NotFound):
        return bool(connection.channel().queue_declare(queue_of(service), passive=True).consumer_count)
    return False


def outbox_of(alias: str, count: int) -> uuid.UUID:
    """The other service tells of something."""
    key = store.insert(alias, "test.thing.made", 1, {"name": "from loyalty"}, None, {})
    Event.objects.using(alias).filter(uuid=key).update(source="loyalty")
    return key


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_publish", "after_publish", "before_relay", "after_relay"])
def test_a_kill_of_the_one_that_tells(point, broker, loyalty):
    with running(broker, loyalty):
        wait_bound(loyalty)
        with running(broker, "default", sync=f"{point}=pause") as worker:
            move(["a"], 20)
            wait_reached(worker.directory, point)
            worker.kill()
        with running(broker, "default"):
            assert_handled(loyalty, ["a"], 20)
            assert_handled("default", ["a"], 20)
            wait_for(lambda: not Event.objects.filter(UNSENT).exists(), 20, "all is sent")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_store", "after_store"])
def test_a_kill_of_the_one_that_receives(point, broker, loyalty):
    with running(broker, "default"):
        with running(broker, loyalty, sync=f"{point}=pause") as worker:
            wait_bound(loyalty)
            move(["a"], 20)
            wait_reached(worker.directory, point)
            worker.kill()
        with running(broker, loyalty):
            assert_handled(loyalty, ["a"], 20)


@pytest.mark.slow
def test_a_broker_that_is_stopped_keeps_nobody_waiting_and_loses_nothing(broker, loyalty):
    with running(broker, "default") as shop, running(broker, loyalty) as other:
        wait_bound(loyalty)
        move(["a"], 5)
        assert_handled(loyalty, ["a"], 5)
        broker.kill()
        move(["a"], 15, first=5)
        assert_handled("default", ["a"], 20)
        broker.start()
        assert_handled(loyalty, ["a"], 20)
        for worker in (shop, other):
            assert worker.text().count("MainProcess] the broker of events amqp") <= 2, "once for each thread"


def publish(broker, *messages: wire.Message, to: str = "", **properties: object) -> None:
    """As some other program does."""
    with amqp.Connection(f"127.0.0.1:{broker.port}", confirm_publish=True) as connection:
        channel = connection.channel()
        for each in messages:
            body, about = wire.encode(each)
            about = {**about, "application_headers": about.pop("headers"), **properties}
            where = (DIRECT, direct_key(to, each.name)) if to else (EXCHANGE, each.name)
            channel.basic_publish(amqp.Message(body, **about), *where)


class InMilliseconds(datetime.datetime):
    """As some clients write a time: py-amqp cannot read it."""

    def utctimetuple(self):
        return (1970, 1, 1, 0, 0, int(self.timestamp() * 1000))


@contextlib.contextmanager
def deep_stack() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_a_message_that_its_protocol_cannot_read_stops_nobody(broker, loyalty):
    with running(broker, loyalty) as worker:
        wait_for(lambda: "the queue events.loyalty gets" in worker.text(), 20, "bound")
        publish(broker, message(1), message(2))
        publish(broker, message(2, "odd"), application_headers={"at": InMilliseconds.now()})
        publish(broker, message(2, "odd"), content_type="\udcff")
        deep: dict[str, Any] = {}
        for _ in range(5000):
            deep = {"a": deep}
        with deep_stack():
            publish(broker, message(2, "odd"), application_headers=deep)
        publish(broker, message(3), message(4))
        publish(broker, message(1), message(1, again="r1"), message(5), to="loyalty")
        wait_for(lambda: len(moved(loyalty)) == 6, 30, "all that are events are handled, and one once more")
        wait_for(lambda: Event.objects.using(loyalty).exclude(problem=None).count() == 3, 30, "and all are noted")
    assert sorted(moved(loyalty)) == [f"moved:a:{number}" for number in (1, 1, 2, 3, 4, 5)]


def test_a_message_that_cannot_be_read_is_acknowledged_before_the_connection_ends(broker, handlers, monkeypatch):
    """With unread messages a connection ends in a reset, and a busy broker loses what it has not read by then."""
    takes = receiver.Receiver(current_app._get_current_object())
    takes.open()
    takes._declare({MOVED})
    takes.close()
    publish(broker, message(1, "odd"), application_headers={"at": InMilliseconds.now()})
    publish(broker, *(message(number, data={"name": "a" * 100_000}) for number in range(1, 101)))
    aside: list[Exception] = []

    def stand_still(app: Any, using: str, exc: Exception) -> None:
        aside.append(exc)
        broker.pause()
        threading.Timer(1.0, broker.resume).start()

    monkeypatch.setattr(inbox, "put_aside", stand_still)
    takes.work(threading.Event())
    takes.close()
    assert len(aside) == 1
    with amqp.Connection(f"127.0.0.1:{broker.port}") as connection:
        channel = connection.channel()
        left = wait_for(lambda: channel.basic_get(queue_of("loyalty"), no_ack=True), 20, "the rest is back")
        assert len(json.loads(left.body)["name"]) == 100_000


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wiped", "purged", "deleted", "exchange"])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_the_broker_lost_after_its_confirm_is_sent_again(how, is_first, broker, loyalty):
    """Also if it was the first thing that the other service would have heard."""
    with running(broker, "default"):
        with running(broker, loyalty) as worker:
            wait_for(lambda: "the queue events.loyalty gets" in worker.text(), 20, "bound")
            if not is_first:
                move(["a"], 5)
                assert_handled(loyalty, ["a"], 5)
        begin = 0 if is_first else 5
        move(["a"], 10, first=begin)
        wait_for(lambda: Event.objects.filter(sent_at__isnull=False).count() == begin + 10, 20, "confirmed")
        if how == "wiped":
            broker.kill()
            broker.wipe()
            broker.start()
        elif how == "exchange":
            forget(broker)
        else:
            forget(broker, queue_of("loyalty"))
        with running(broker, loyalty):
            assert_handled(loyalty, ["a"], begin + 10)


@pytest.mark.slow
def test_what_was_lost_and_is_pruned_is_told_and_holds_up_nobody(broker, loyalty):
    with running(broker, "default"):
        with running(broker, loyalty):
            wait_bound(loyalty)
            move(["a"], 5)
            assert_handled(loyalty, ["a"], 5)
        move(["a"], 5, first=5)
        wait_for(lambda: Event.objects.filter(sent_at__isnull=False).count() == 10, 20, "confirmed")
        forget(broker, queue_of("loyalty"))
        Event.objects.filter(number__in=(6, 7)).delete()
        with running(broker, loyalty) as worker:
            wait_for(lambda: "moved:a:9" in moved(loyalty), 60, "what is left is handled")
            assert f"the events 6 to 7 of {MOVED} from shop are lost: shop has them no longer" in worker.text()
    assert moved(loyalty) == [f"moved:a:{number}" for number in (0, 1, 2, 3, 4, 7, 8, 9)]


def test_a_source_that_does_not_answer_holds_up_its_events_for_a_while_only(broker, handlers, monkeypatch, caplog):
    monkeypatch.setattr(receiver, "OVERTAKEN", 0.0)
    control = ControlLink()
    heals = receiver.Gaps(current_app._get_current_object(), "default", control)
    receive(message(1), message(3))
    heals.look()
    assert numbers_of_jobs() == [1], "it was asked, and has a while to answer"
    monkeypatch.setattr(receiver, "PATIENCE", 0.0)
    heals.look()
    assert numbers_of_jobs() == [1, 3]
    assert f"the events 2 to 2 of {MOVED} from shop are lost: shop did not answer" in caplog.text
    receive(message(2))
    assert numbers_of_jobs() == [1, 3, 2], "late, and not lost"
    control.close()


class Asking(ControlLink):
    """Says nothing, and keeps what it was to say."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []

    def say(self, what: str, source: str, data: dict, key: str, to: str | None = None) -> None:
        self.asked.append(data)


def position(name: str, number: int) -> wire.Message:
    return wire.Message(id="p", source="shop", name=POSITION, data={"name": name, "number": number})


def test_a_handler_that_wants_more_misses_nothing_of_before(broker, handlers):
    """Its pattern may change with a deploy. What it wanted all the while is missing from the beginning."""
    app, before = current_app._get_current_object(), databases.clock("default")
    Subscription.objects.exclude(handler="tests.contrib.events.tasks.note_moved").delete()
    Subscription.objects.update(since=before - datetime.timedelta(days=300))
    task = app.tasks["tests.contrib.events.tasks.note_moved"]
    with patch.dict(task.subscribes, pattern="test.thing.*"):
        relay.subscribe(app, "default")
    Subscription.objects.exclude(handler="tests.contrib.events.tasks.note_moved").delete()
    heals = receiver.Gaps(app, "default", control := Asking())
    for name in (MOVED, "test.thing.made"):
        heals.hear(position(name, 5000))
    heals.look()
    since = {each["name"]: datetime.datetime.fromisoformat(each["since"]) for each in control.asked}
    assert since[MOVED] == before - datetime.timedelta(days=300)
    assert since["test.thing.made"] > before


def test_a_replay_gives_a_handler_that_wants_more_what_it_did_not_want_before(handlers):
    """And nothing twice, also if the jobs are pruned."""
    app, name = current_app._get_current_object(), "tests.contrib.events.tasks.note_moved"
    Subscription.objects.exclude(handler=name).delete()
    receive(message(1), message(1, name="test.thing.made", id="made"))
    with patch.dict(app.tasks[name].subscribes, pattern="test.thing.*"):
        relay.subscribe(app, "default")
    Subscription.objects.exclude(handler=name).delete()
    Job.objects.all().delete()
    done = replay.replay(app, replay.select("default"), "loyalty")
    assert (done["events"], done["jobs"]) == (2, 1)
    assert Job.objects.get().kwargs["name"] == "a"
    assert Job.objects.get().parent_id == Event.objects.get(name="test.thing.made").uuid


def test_what_was_asked_for_is_not_asked_for_again_while_it_comes(broker, handlers):
    """Each question has the source go back to where it began."""
    heals = receiver.Gaps(current_app._get_current_object(), "default", control := Asking())
    heals.hear(position(MOVED, 50))
    for first in range(1, 51, 10):
        heals.look()
        receive(*[message(number) for number in range(first, first + 10)])
    heals.look()
    assert [each["first"] for each in control.asked] == [1]
    assert Position.objects.get().number == 50


@pytest.fixture
def listening(broker) -> Iterator[amqp.Channel]:
    """Another program's channel."""
    with amqp.Connection(f"127.0.0.1:{broker.port}") as connection:
        channel = connection.channel()
        for exchange in (EXCHANGE, DIRECT):
            channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
        yield channel


def queue_in(channel: amqp.Channel, service: str, *patterns: str) -> str:
    """The queue of a service that is bound as its workers bind it."""
    queue = channel.queue_declare(queue_of(service), auto_delete=False, durable=True).queue
    for pattern in patterns:
        channel.queue_bind(queue, EXCHANGE, pattern)
        channel.queue_bind(queue, DIRECT, direct_key(service, pattern))
    return queue


def in_queue(channel: amqp.Channel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).message_count


def numbered(node) -> publisher.Publisher:
    """All that was told is handed on; and who sends it."""
    relay.subscribe(current_app._get_current_object(), "default")
    relay.hand_on(current_app._get_current_object(), "default")
    return publisher.Publisher()


def test_what_is_sent_again_is_sent_to_the_one_that_misses_it(node, listening, settings):
    settings.JOBS = {**settings.JOBS, "EVENT_CELERY_EXCHANGE": "events"}
    listening.exchange_declare("events", "topic", durable=True, auto_delete=False)
    queues = {}
    for exchange in ("events", EXCHANGE):
        queues[exchange] = listening.queue_declare(exclusive=True).queue
        listening.queue_bind(queues[exchange], exchange, MOVED)
    move(["a"], 3)
    sends = numbered(node)
    assert sends._send("default", threading.Event()) == 3
    heals = receiver.Gaps(current_app._get_current_object(), "default", ControlLink())
    queues["loyalty"] = listening.queue_declare(queue_of("loyalty"), auto_delete=False).queue
    listening.queue_bind(queues["loyalty"], DIRECT, "loyalty.test.#")
    heals._resend("shop", MOVED, 2, 3, "loyalty", None)
    assert sends._send("default", threading.Event()) == 0
    counts = {name: in_queue(listening, queue) for name, queue in queues.items()}
    assert counts == {"events": 3, EXCHANGE: 3, "loyalty": 2}
    sends.close()


def test_a_service_gets_nothing_again_that_its_queue_is_not_bound_to(node, listening):
    """Whoever asks, and in whose name. Of a replay the caller hears how much arrived."""
    queues = {name: queue_in(listening, name, pattern) for name, pattern in (("loyalty", MOVED), ("mallory", "odd.#"))}
    move(["a"], 3)
    told.thing_made("secret")
    sends = numbered(node)
    assert sends._send("default", threading.Event()) == 4
    sends.close()
    for queue in queues.values():
        listening.queue_purge(queue)
    heals = receiver.Gaps(current_app._get_current_object(), "default", ControlLink())
    for name in queues:
        for what in (MOVED, "test.thing.made"):
            asked = {"source": "shop", "name": what, "first": 1, "last": 3, "service": name, "since": None}
            asked |= {"from": asked["first"], "to": asked["last"]}
            heals.hear(wire.Message(id="q", source=name, name=RESEND, data=asked))
        heals.hear(wire.Message(id="h", source=name, name=HELLO, data={"service": name, "patterns": ["#"]}))
    wait_for(lambda: in_queue(listening, queues["loyalty"]) >= 4, 20, "events and position")
    assert in_queue(listening, queues["mallory"]) == 0
    got = [listening.basic_get(queues["loyalty"], no_ack=True) for _ in range(4)]
    assert [wire.decode(each.body, each.properties).name for each in got] == [MOVED] * 3 + [POSITION]
    assert listening.basic_get(queues["loyalty"], no_ack=True) is None
    assert publisher.send_to("loyalty", list(Event.objects.all()), "default", None) == 3
    heals._control.close()
    for queue in queues.values():
        listening.queue_delete(queue)


@pytest.mark.slow
def test_the_permissions_of_the_documentation_keep_a_service_within_its_names(broker, loyalty):
    """And are all that it needs."""
    text = (ROOT / "docs/howto/events.md").read_text()
    for line in re.findall(r"^rabbitmqctl (.*)$", text, re.M):
        broker.control(*shlex.split(line.replace(r"sales\.order\..*", r"test\.thing\..*|tests\.person_joined")))
    try:
        user = f"amqp://loyalty:secret@127.0.0.1:{broker.port}//"
        with running(broker, "default"):
            with running(SimpleNamespace(url=user), loyalty) as worker:
                wait_for(lambda: "the queue events.loyalty gets" in worker.text(), 20, "bound")
                move(["a"], 3)
                assert_handled(loyalty, ["a"], 3)
            told.thing_made("lost")
            move(["a"], 3, first=3)
            wait_for(lambda: not Event.objects.filter(sent_at=None).exists(), 20, "confirmed")
            with amqp.Connection(f"127.0.0.1:{broker.port}") as connection:
                connection.channel().queue_purge(queue_of("loyalty"))
            with running(SimpleNamespace(url=user), loyalty):
                assert_handled(loyalty, ["a"], 6)
        queue = queue_of("loyalty")
        refused = [
            lambda channel: channel.queue_bind(queue, EXCHANGE, "secret.thing"),
            lambda channel: channel.queue_bind(queue, EXCHANGE, "#"),
            lambda channel: channel.queue_bind(queue, DIRECT, direct_key("loyalty", "secret.thing")),
            lambda channel: channel.queue_bind(queue, DIRECT, direct_key("shop", MOVED)),
            lambda channel: channel.queue_declare(queue_of("mallory")),
            lambda channel: channel.basic_get(queue_of("shop")),
            lambda channel: channel.basic_publish_confirm(amqp.Message(), EXCHANGE, MOVED),
            lambda channel: channel.basic_publish_confirm(amqp.Message(), DIRECT, direct_key("shop", MOVED)),
            lambda channel: channel.basic_publish_confirm(amqp.Message(), "", queue_of("shop")),
        ]
        for each in refused:
            connection = amqp.Connection(f"127.0.0.1:{broker.port}", "loyalty", "secret", confirm_publish=True)
            with connection, pytest.raises(amqp.exceptions.AccessRefused):
                each(connection.channel())
    finally:
        broker.control("delete_user", "loyalty")


def test_a_pattern_is_matched_as_the_broker_does_it(listening):
    words = ["a", "b", ""]
    names = [".".join(some) for count in (1, 2, 3) for some in itertools.product(words, repeat=count)]
    patterns = [".".join(some) for count in (1, 2, 3) for some in itertools.product("a*#", repeat=count)]
    exchange = "patterns"
    listening.exchange_declare(exchange, "topic")
    queues = {}
    for pattern in patterns:
        queues[pattern] = listening.queue_declare(exclusive=True).queue
        listening.queue_bind(queues[pattern], exchange, pattern)
    listening.confirm_select()
    for name in names:
        listening.basic_publish_confirm(amqp.Message(name), exchange, name)
    for pattern, queue in queues.items():
        found = list(iter(lambda queue=queue: listening.basic_get(queue, no_ack=True), None))
        expected = [name for name in names if relay.matches(pattern, name)]
        assert [each.body for each in found] == expected, pattern
    listening.exchange_delete(exchange)


def test_what_the_broker_refuses_holds_up_no_other_event(node, listening, monkeypatch, caplog):
    """However many of one name it refuses, and however often."""
    monkeypatch.setattr(publisher, "CHUNK", 2)
    full = listening.queue_declare(exclusive=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"}).queue
    listening.queue_bind(full, EXCHANGE, MOVED)
    move(["a"], 2)
    told.thing_made("b")
    move(["a"], 1, first=2)
    sends = numbered(node)
    assert [sends._send("default", threading.Event()) for _ in range(3)] == [2, 1, 0]
    assert [row.name for row in Event.objects.exclude(sent_at=None)] == ["test.thing.made"]
    monkeypatch.setattr(publisher, "FULL", 0.0)
    sends._full_until = dict.fromkeys(sends._full_until, 0.0)
    assert sends._send("default", threading.Event()) == 2
    # Who reads the other name may have a queue that is full as well: it is told how far that is, or is not.
    sends._tell("default", threading.Event())
    assert caplog.text.count("a queue is full") == 1
    listening.queue_delete(full)
    assert [sends._send("default", threading.Event()) for _ in range(3)] == [2, 1, 0]
    assert not Event.objects.filter(sent_at=None).exists()
    sends.close()


def test_values_without_names_are_replayed_to_another_service(node, listening):
    """They came from Celery."""
    task = current_app.amqp.as_task_v2(str(uuid.uuid4()), MOVED, ("a", 2), {})
    receive(Delivery(json.dumps(task.body), {"headers": task.headers, "content_type": "application/json"}, MOVED))
    queue = queue_in(listening, "loyalty", MOVED)
    assert publisher.send_to("loyalty", list(Event.objects.all()), "default", None) == 1
    sent = wait_for(lambda: listening.basic_get(queue, no_ack=True), 20, "it is sent")
    assert wire.decode(sent.body, sent.properties).args == ["a", 2]


@pytest.mark.slow
def test_a_broker_that_takes_nothing_still_gives_what_it_has(broker, loyalty):
    """Short of memory it reads nothing from connections that have published."""
    with running(broker, loyalty) as worker:
        wait_for(lambda: "the queue events.loyalty gets" in worker.text(), 20, "bound")
    publish(broker, *[message(number + 1) for number in range(1500)])
    broker.control("set_vm_memory_high_watermark", "0")
    try:
        with running(broker, loyalty):
            wait_for(lambda: Event.objects.using(loyalty).count() == 1500, 60, "all of it came")
    finally:
        broker.control("set_vm_memory_high_watermark", "0.4")


@pytest.mark.slow
def test_a_handler_that_is_added_while_a_backlog_runs_misses_nothing_from_then_on(broker, loyalty, settings):
    plain = settings.JOBS
    with running(broker, "default"):
        settings.JOBS = {**plain, "EXCLUDE": ["tests.contrib.events.tasks.note_moved"]}
        with running(broker, loyalty):
            wait_bound(loyalty)
            move(["a"], 300)
            wait_for(lambda: Effect.objects.using(loyalty).exists(), 20, "the backlog runs")
            settings.JOBS = plain
            with running(broker, loyalty):
                move(["a"], 300, first=300)
                wait_for(lambda: f"moved:a:{599}" in moved(loyalty), 60, "the last one is handled")
                # As long as there is a worker that ends them.
                wait_for(lambda: not Job.objects.using(loyalty).filter(state__in=LIVE).exists(), 30, "all have ended")
    numbers = [int(key.rpartition(":")[2]) for key in moved(loyalty)]
    assert numbers == list(range(numbers[0], 600))
    everything = Effect.objects.using(loyalty).filter(key__startswith="all:").values_list("key", flat=True)
    assert sorted(everything) == sorted(f"all:a:{number}" for number in range(600))


# What arrives, in this process


@pytest.fixture
def handlers(settings):
    settings.JOBS = {**settings.JOBS, "SERVICE": "loyalty"}
    relay.subscribe(current_app._get_current_object(), "default")


def message(number: int | None, key: str = "a", **more) -> wire.Message:
    values = {"id": f"{key}-{number}", "source": "shop", "name": MOVED, "key": key, "number": number}
    data = {"name": key, "number": number or 0}
    return wire.Message(**{**values, "data": data, "time": timezone.now(), **more})


def delivered(message: wire.Message) -> Delivery:
    """As services publish it."""
    body, properties = wire.encode(message)
    if message.name == RESEND:
        return Delivery(body, properties, direct_key(service(), RESEND), DIRECT)
    return Delivery(body, properties, message.data["name"] if message.name in (POSITION, GONE) else message.name)


def direct(message: wire.Message) -> Delivery:
    return Delivery(*wire.encode(message), direct_key(service(), message.name), DIRECT)


def receive(*messages: wire.Message | Delivery) -> list[wire.Message]:
    found = [each if isinstance(each, Delivery) else delivered(each) for each in messages]
    return inbox.store(current_app._get_current_object(), "default", found)


@pytest.mark.slow
def test_what_arrives_doubled_and_shuffled_is_handled_once_and_in_order(handlers):
    random.seed(7)
    messages = [message(place + 1, "ab"[place % 2], id=str(place)) for place in range(60)] * 2
    random.shuffle(messages)
    while messages:
        size = random.randint(1, 9)
        receive(*messages[:size])
        messages = messages[size:]
    assert not Event.objects.filter(PARKED).exists()
    run_jobs()
    found = [key.split(":") for key in moved("default")]
    assert len(found) == 60
    for name in "ab":
        numbers = [int(number) for _, each, number in found if each == name]
        assert numbers == list(range(1 if name == "a" else 2, 61, 2))
    position = Position.objects.get()
    assert (position.number, position.gap_since) == (60, None)


def test_what_lies_behind_a_gap_is_parked_until_the_gap_is_closed(handlers):
    receive(message(1), message(2), message(4), message(5))
    assert numbers_of_jobs() == [1, 2]
    assert Position.objects.get().gap_since is not None
    receive(message(3))
    assert numbers_of_jobs() == [1, 2, 3, 4, 5]
    assert Position.objects.get().gap_since is None


def test_what_is_late_or_has_no_number_is_handed_on_at_once(handlers):
    inbox.go_on(current_app._get_current_object(), "default", "shop", MOVED, 10)
    receive(message(7), message(None, "x"))
    assert numbers_of_jobs() == [7, 0]


def test_what_waited_while_a_handler_was_written_is_timed_after_it(handlers, monkeypatch):
    """Guard: else a replay would give the handler once more what it had, as soon as the job is pruned."""
    lock = relay.lock

    def waits(*args: str) -> Relay:
        locked = lock(*args)
        time.sleep(0.01)
        Subscription.objects.update(since=databases.clock("default"))
        return locked

    monkeypatch.setattr(relay, "lock", waits)
    receive(message(1), message(None, "x"))
    written = Subscription.objects.latest("since").since
    assert all(event.relayed_at >= written for event in Event.objects.all())


def test_a_source_that_counts_anew_is_heard(handlers):
    receive(message(1), message(2))
    receive(message(1, id="new"), message(2, id="newer"), message(3))
    assert numbers_of_jobs() == [1, 2, 1, 2, 3]


def test_a_sequence_of_somebody_else_is_no_number(handlers):
    """CloudEvents counts all events of a source together, or not without a gap."""
    body, properties = wire.encode(message(5))
    headers = {name: one for name, one in properties["headers"].items() if "eventversion" not in name}
    receive(Delivery(body, {**properties, "headers": headers}, MOVED))
    assert numbers_of_jobs() == [5]


def numbers_of_jobs() -> list[int]:
    jobs = Job.objects.filter(task="tests.contrib.events.tasks.note_moved").order_by("order_position", "id")
    return [job.kwargs["number"] for job in sorted(jobs, key=lambda job: job.order_position or 0)]


def test_a_poison_message_is_kept_and_stops_nobody(handlers):
    bad = [
        Delivery(b"\xff\x00not json", {"content_type": "application/json"}, "shop.odd"),
        Delivery("{}", {"headers": {b"\xff": "x"}}),
        Delivery("[1]", {"content_type": "text/plain", "headers": {}}, "a" * 300),
        delivered(message(2, version=99_999)),
        delivered(message(None, "y", source="s" * 300)),
    ]
    receive(message(1), *bad, message(2, "b"), message(3))
    receive(*bad)
    assert numbers_of_jobs()[:1] == [1]
    assert {1, 2, 3} <= set(numbers_of_jobs())
    rows = Event.objects.exclude(problem=None)
    assert rows.filter(name="shop.odd").get().data["body"].endswith("not json")
    assert rows.filter(name="?").exists()
    assert not rows.filter(relayed_at=None).exists()
    assert rows.filter(problem__contains="JSON").exists()
    no_events = replay.select("default").filter(name="shop.odd")
    made = replay.replay(current_app._get_current_object(), no_events, service(), again=True)
    assert made["jobs"] == 0, "a replay finds no event in it either"


LONG = "x" * 256
#: What no service says, and why.
ODD = {
    "number": (GONE, {"name": MOVED, "number": 2**63, "is_lost": True}),
    "name": (GONE, {"name": LONG, "number": 5, "is_lost": True}),
    "no number": (POSITION, {"name": MOVED, "number": "5"}),
    "long name": (POSITION, {"name": LONG, "number": 5}),
    "below": (POSITION, {"name": MOVED, "number": -1}),
    "year 1": (RESEND, {"since": "0001-01-01T00:00:00+14:00"}),
    "no time": (RESEND, {"since": "yesterday"}),
    "last": (RESEND, {"last": 2**63}),
    "to nobody": (RESEND, {"service": LONG}),
    "service": (HELLO, {"service": LONG, "patterns": ["a"]}),
    "patterns": (HELLO, {"service": "a", "patterns": "a"}),
    "many": (HELLO, {"service": "a", "patterns": ["a"] * 1001}),
    "pattern": (HELLO, {"service": "a", "patterns": ["#." * 200]}),
    "nothing": (HELLO, {}),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_no_service_says_is_kept_as_a_problem_and_stops_nobody(odd, handlers, broker, settings):
    settings.JOBS = {**settings.JOBS, "SERVICE": "loyalty"}
    name, data = ODD[odd]
    if name == RESEND:
        asked = {"source": "loyalty", "name": MOVED, "first": 1, "last": 5, "service": "shop", "since": None}
        data = {**asked, "from": 1, **data, "to": data.get("last", 5)}
    heals = receiver.Gaps(current_app._get_current_object(), "default", ControlLink())
    take(heals, [delivered(wire.Message(id="odd", source="shop", name=name, data=data)), delivered(message(1))])
    heals._control.close()
    assert numbers_of_jobs() == [1]
    assert Event.objects.exclude(problem=None).get().problem


ASKED = {"source": "loyalty", "name": MOVED, "first": 1, "last": 5, "service": "shop", "since": None}
#: What stands in a message, and where somebody published it who may not write that name there.
FORGED = {
    "event": (MOVED, {"name": "a", "number": 1}, "evil.x", EXCHANGE),
    "event for one": (MOVED, {"name": "a", "number": 1}, "loyalty.evil.x", DIRECT),
    "event for another": (MOVED, {"name": "a", "number": 1}, direct_key("sales", MOVED), DIRECT),
    "event under a name that begins with the service's": (
        MOVED, {"name": "a", "number": 1}, direct_key("loyalty", MOVED), EXCHANGE
    ),
    "event in the queue": (MOVED, {"name": "a", "number": 1}, queue_of("loyalty"), ""),
    "position": (POSITION, {"name": MOVED, "number": 9}, "evil.x", EXCHANGE),
    "position under its own name": (POSITION, {"name": MOVED, "number": 9}, POSITION, EXCHANGE),
    "gone": (GONE, {"name": MOVED, "number": 9, "is_lost": True}, "loyalty.evil.x", DIRECT),
    "hello": (HELLO, {"service": "shop", "patterns": ["#"]}, "evil.x", EXCHANGE),
    "resend": (RESEND, ASKED, "loyalty.evil.x", DIRECT),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_a_message_is_of_the_name_that_the_broker_let_it_be_published_under(forged, handlers):
    """Else a service with permissions for one name alone could tell of any other."""
    name, data, *where = FORGED[forged]
    body, properties = wire.encode(wire.Message(id="forged", source="shop", name=name, number=1, data=data))
    assert receive(Delivery(body, properties, *where)) == []
    assert not Job.objects.exists()
    assert not Position.objects.exists()
    assert "routing key" in Event.objects.get().problem
    receive(message(1))
    assert numbers_of_jobs() == [1]


def test_what_another_service_said_and_broke_something_here_is_kept_as_a_problem(handlers, monkeypatch):
    """Whatever it was: unacknowledged it would come for ever, and all that is behind it would wait."""
    takes = receiver.Receiver(current_app._get_current_object())
    monkeypatch.setattr(takes._gaps, "_told", None)
    takes.take([delivered(position(MOVED, 5)), delivered(message(1))])
    assert numbers_of_jobs() == [1]
    assert "it cannot be kept: TypeError" in Event.objects.get(name=POSITION).problem


def take(heals: receiver.Gaps, deliveries: list[Delivery]) -> None:
    """All that happens before messages are acknowledged, and after it: what raises here would come for ever."""
    for said in inbox.store(current_app._get_current_object(), "default", deliveries):
        heals.hear(said)
    heals.look()


def test_a_source_that_cannot_be_a_service_is_asked_nothing(broker, handlers, monkeypatch):
    monkeypatch.setattr(receiver, "OVERTAKEN", 0.0)
    heals = receiver.Gaps(current_app._get_current_object(), "default", ControlLink())
    take(heals, [delivered(message(number, source="x" * 255)) for number in (1, 3)])
    take(heals, [delivered(message(number, source="https://odd")) for number in (1, 3)])
    heals._control.close()
    assert numbers_of_jobs() == [1, 1]


def test_nobody_skips_what_was_not_asked_for(handlers):
    """Nor moves the numbers of our own events."""
    heals = receiver.Gaps(current_app._get_current_object(), "default", control := Asking())
    gone = wire.Message(id="g", source="shop", name=GONE, data={"name": MOVED, "number": 2**60, "is_lost": True})
    take(heals, [delivered(message(1)), delivered(gone), delivered(replace(gone, source="loyalty"))])
    assert Position.objects.get().number == 1
    take(heals, [delivered(position(MOVED, 9))])
    assert len(control.asked) == 1
    take(heals, [delivered(gone)])
    assert Position.objects.get().number == 9, "and no more than what was asked for"


def test_a_position_of_a_name_that_nobody_handles_leaves_no_row(handlers):
    """Whoever may write names could fill the table with them."""
    heals = receiver.Gaps(current_app._get_current_object(), "default", control := Asking())
    for number in range(3):
        take(heals, [delivered(position(f"odd.name{number}", 9))])
    assert not Position.objects.exists()
    assert (control.asked, heals._told) == ([], {})


class Ours(Asking):
    """Carries what one of two services says to the other at once."""

    def __init__(self) -> None:
        super().__init__()
        self.to: receiver.Gaps
        self.sent: list[wire.Message] = []

    def say(self, what: str, source: str, data: dict, key: str, to: str | None = None) -> None:
        super().say(what, source, data, key, to)
        said = wire.Message(id=str(len(self.asked)), source=source, name=what, data=data)
        self.to.hear(replace(said, data=control.read(said)))

    def send_again(self, to: str, messages: Iterable[wire.Message]) -> int:
        self.sent += (some := list(messages))
        return len(some)


#: The source whose events are in the other database of :func:`pair`.
THERE = "shop/loyalty"


@pytest.fixture
def pair(loyalty, handlers, settings, monkeypatch) -> tuple[receiver.Gaps, Ours, Ours]:
    """What a service misses, what it says, and what the source says."""
    settings.JOBS = {**settings.JOBS, "DATABASES": ["default", loyalty]}
    monkeypatch.setattr(receiver, "OVERTAKEN", 0.0)
    app = current_app._get_current_object()
    misses, source = (receiver.Gaps(app, "default", Ours()) for _ in range(2))
    misses._control.to, source._control.to = source, misses
    return misses, misses._control, source._control


def tell_there(at: datetime.datetime, *numbers: int) -> None:
    """The source has told these, and the broker has them."""
    about = {"name": MOVED, "source": "shop", "data": {"name": "a"}, "at": at, "sent_at": at, "relayed_at": at}
    Event.objects.using("loyalty").bulk_create(Event(**about, number=number) for number in numbers)
    last = {"number": max(numbers)}
    Position.objects.using("loyalty").update_or_create(source="shop", name=MOVED, defaults=last)


def hear_of(misses: receiver.Gaps, number: int) -> None:
    take(misses, [delivered(replace(position(MOVED, number), source=THERE))])
    for _ in range(20):
        misses.look()


def arrive(misses: receiver.Gaps, answers: Ours) -> None:
    """What was sent again, with other ids: those of both databases are known here."""
    take(misses, [delivered(replace(each, id=f"copy {each.number}")) for each in answers.sent])


def test_a_number_that_no_source_has_is_asked_for_once(pair, caplog):
    """Two services spoke to each other about 2**62 numbers, a thousand at a time, without a pause."""
    misses, asks, answers = pair
    hear_of(misses, 2**62 - 1)
    assert [each["first"] for each in asks.asked] == [1]
    assert answers.asked == [{"name": MOVED, "number": 0}]
    assert not Position.objects.exists()
    assert "lost" not in caplog.text
    take(misses, [delivered(message(1, source=THERE)), delivered(message(2, source=THERE))])
    assert numbers_of_jobs() == [1, 2], "and what is told is handled"


def test_a_source_that_is_asked_for_more_than_it_has_sends_what_it_has(pair, caplog):
    misses, asks, answers = pair
    tell_there(timezone.now(), 1, 2, 3)
    hear_of(misses, 2**62 - 1)
    assert [each.number for each in answers.sent] == [1, 2, 3]
    arrive(misses, answers)
    misses.look()
    assert answers.asked == [{"name": MOVED, "number": 3}]
    assert [each["first"] for each in asks.asked] == [1, 4]
    assert Position.objects.get().number == 3
    assert "lost" not in caplog.text


def test_a_new_handler_of_an_old_name_asks_once_however_much_was_told_before_it(pair, caplog):
    misses, asks, answers = pair
    # The first ones are pruned.
    tell_there(timezone.now() - datetime.timedelta(days=9), *range(101, 3001))
    hear_of(misses, 3000)
    assert len(asks.asked) == 1
    assert answers.asked == [{"name": MOVED, "number": 3000, "is_lost": False}]
    assert Position.objects.get().number == 3000
    tell_there(timezone.now(), 3001)
    hear_of(misses, 3001)
    assert [each.number for each in answers.sent] == [3001]
    assert "lost" not in caplog.text


def test_what_was_told_since_the_handler_is_there_and_is_gone_is_lost(pair, caplog):
    misses, _, answers = pair
    tell_there(timezone.now(), 1, 2)
    hear_of(misses, 2)
    arrive(misses, answers)
    tell_there(timezone.now(), 5)
    hear_of(misses, 5)
    assert f"the events 3 to 4 of {MOVED} from {THERE} are lost" in caplog.text
    assert answers.sent[-1].number == 5


def test_a_number_that_nobody_answers_for_moves_no_position(pair, monkeypatch):
    """Guard: else all that the source tells from then on would be late, in no order, and no loss would be seen."""
    misses, asks, _ = pair
    asks.to = receiver.Gaps(misses._app, "default", Asking())
    take(misses, [delivered(message(1, source=THERE))])
    hear_of(misses, 2**62 - 1)
    monkeypatch.setattr(receiver, "PATIENCE", -1.0)
    misses.look()
    assert Position.objects.get().number == 1
    assert misses._told == {}


# Anything that the wire can bring

EDGES = st.sampled_from([0, -1, 1, 2**15, 2**31, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**400])
TIMES = st.sampled_from(
    ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2030-01-02T00:00:00", "1950-01-01T00:00:00Z", "", "x"]
)
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["shop", "loyalty", MOVED, "#", "#." * 99 + "x", "\0", "a/b", "/", LONG, "x" * 255, "\U0001f600" * 255, *CONTROL]
)
PLAIN = st.none() | st.booleans() | EDGES | st.integers() | st.floats() | TEXTS | TIMES
JSON = st.recursive(
    PLAIN, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3), max_leaves=8
)
SAID = ("service", "patterns", "name", "number", "source", "first", "last", "since", "is_lost", "from", "to")
ATTRIBUTES = "id source type specversion eventversion time partitionkey sequence replay traceparent tracestate".split()
#: As py-amqp reads a table.
TABLES = st.dictionaries(
    st.sampled_from([*(f"cloudEvents:{each}" for each in ATTRIBUTES), "task", "id", "traceparent", "x-death"]) | TEXTS,
    JSON | st.binary(max_size=9) | st.datetimes(),
    max_size=12,
)
FORMS = st.sampled_from(["application/json", "application/cloudevents+json", "text/plain"]) | st.none() | TEXTS
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "application_headers": TABLES,
        "content_type": FORMS,
        "message_id": TEXTS,
        "app_id": TEXTS,
        "timestamp": EDGES | st.datetimes(),
    },
)
EXCHANGES = st.sampled_from([EXCHANGE, DIRECT, ""])
ROUTING_KEYS = TEXTS.filter(lambda text: len(text) < 256)


@st.composite
def nearly(draw, name: Any, data: Any, attributes: tuple[str, ...] = tuple(ATTRIBUTES)) -> Delivery:
    """A message as a service sends it, of which some attributes are odd."""
    what, says = draw(name), draw(data)
    _, properties = wire.encode(wire.Message(id=str(uuid.uuid4()), source="shop", name=what, data={}))
    odd = draw(st.dictionaries(st.sampled_from(attributes), EDGES.map(str) | TEXTS | TIMES | st.binary(max_size=3)))
    headers = properties["headers"] | {f"cloudEvents:{each}": value for each, value in odd.items()}
    topic = str(says.get("name", what)) if what in (POSITION, GONE) and isinstance(says, dict) else what
    places = [(topic, EXCHANGE), (direct_key("loyalty", topic), DIRECT), (draw(ROUTING_KEYS), EXCHANGE)]
    return Delivery(json.dumps(says).encode(), {**properties, "headers": headers}, *draw(st.sampled_from(places)))


WELL_SAID = {
    "service": st.sampled_from(["shop", "loyalty", "a.b"]),
    "patterns": st.lists(st.sampled_from(["#", "test.*.*", MOVED]), max_size=3),
    "name": st.sampled_from([MOVED, "odd.name", LONG]),
    "number": st.integers(0, 9) | EDGES,
    "source": st.sampled_from(["shop", "loyalty", "loyalty/default", "loyalty/x"]),
    "first": st.integers(0, 3) | EDGES,
    "last": st.integers(3, 9) | EDGES,
    "since": st.none() | TIMES,
    "is_lost": st.booleans(),
}
DELIVERIES = st.lists(
    st.builds(Delivery, st.binary(max_size=30) | JSON.map(json.dumps), PROPERTIES, ROUTING_KEYS, EXCHANGES)
    | nearly(st.just(MOVED) | TEXTS, JSON | st.fixed_dictionaries({"name": TEXTS, "number": EDGES}))
    | nearly(st.sampled_from(CONTROL), st.dictionaries(st.sampled_from(SAID), JSON), ("source", "id"))
    | nearly(st.sampled_from(CONTROL), st.fixed_dictionaries(WELL_SAID), ("source",)),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
def test_whatever_comes_is_taken_once_and_stops_nobody(broker, handlers, monkeypatch, settings):
    monkeypatch.setattr(receiver, "OVERTAKEN", 0.0)
    app = current_app._get_current_object()
    move(["a"], 5)
    relay.hand_on(app, "default")
    Event.objects.update(sent_at=timezone.now())
    heals = receiver.Gaps(app, "default", ControlLink())

    @hypothesis.settings(max_examples=300, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(DELIVERIES)
    def comes(deliveries):
        take(heals, deliveries)
        heals._control.listen()
        count = Event.objects.count()
        inbox.store(app, "default", deliveries)
        assert Event.objects.count() == count, "once more, and known"

    comes()
    heals._control.close()
    moments = [event.at for event in Event.objects.all()] + [job.run_at for job in Job.objects.all()]
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
        assert all(moment.astimezone(ZoneInfo(zone)) for moment in moments)
    receive(good := delivered(message(None, "good")))
    assert Job.objects.filter(task="tests.contrib.events.tasks.note_moved", kwargs__name="good").count() == 1, good


def test_bad_messages_of_one_body_are_kept_apart_and_the_same_one_is_kept_once(handlers):
    headers = {"cloudEvents:id": "7", "cloudEvents:source": "a"}
    bad = [
        Delivery("{}", {"headers": {}}, "shop.odd"),
        Delivery("{}", {"headers": headers}, "shop.odd"),
        Delivery("{}", {"headers": headers, "content_type": "text/plain"}, "shop.odd"),
    ]
    receive(*bad)
    receive(*bad)
    receive(Delivery("{}", {"headers": {**headers, "x-delivery-count": 1}}, "shop.odd"))
    assert Event.objects.filter(name="shop.odd").exclude(problem=None).count() == 3


@pytest.mark.database
def test_no_event_is_put_aside_because_the_server_ended_a_session_that_stood_still(handlers, monkeypatch):
    if connections["default"].vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    monkeypatch.setattr(relay, "STILL", 1)
    pauses = [1.5]
    monkeypatch.setattr(inbox, "reach", lambda point: pauses and time.sleep(pauses.pop()))
    with pytest.raises(Error, match="idle-in-transaction"):
        receive(message(None))
    assert not Event.objects.exists()


def test_what_no_handler_understands_is_kept_and_says_why(handlers):
    lost = "test.thing.lost"
    Subscription.objects.exclude(pattern=lost).delete()
    receive(message(1))
    receive(wire.Message(id="1", source="shop", name=lost, version=2, number=1, data={"name": "a"}))
    assert Event.objects.get(name=MOVED).problem == "no handler is there for it"
    assert Event.objects.get(name=lost).problem == "no handler understands its version 2: they handle version 1"
    assert not Event.objects.filter(relayed_at=None).exists()
    assert not Job.objects.exists()


def test_a_replay_is_handled_once_more_and_no_more(handlers):
    receive(message(1), message(2))
    for _ in range(2):
        receive(message(1, again="r1"), message(1, again="r1"), message(3, again="r1"))
    receive(message(3), message(4))
    assert numbers_of_jobs() == [1, 2, 1, 3, 4]
    receive(message(1, again="r2"))
    assert numbers_of_jobs() == [1, 2, 1, 3, 4, 1]
    assert Position.objects.get().number == 4


def test_a_replay_gives_a_handler_what_it_did_not_have(handlers):
    """And what it had, or will have after what is before it, no second time."""
    mine = Subscription.objects.filter(handler="tests.contrib.events.tasks.note_moved")
    mine.update(pattern="nothing")
    receive(message(1), message(2))
    mine.update(pattern=MOVED, since=timezone.now())
    receive(message(3), message(5))
    for _ in range(2):
        receive(*[direct(message(number)) for number in (1, 2, 3, 5)])
    assert numbers_of_jobs() == [3, 1, 2]
    receive(message(4))
    assert numbers_of_jobs() == [3, 1, 2, 4, 5]


def test_our_own_events_that_come_back_are_known(settings, transactional_db):
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": "amqp://nobody"}
    told.thing_moved("a", 1)
    run_jobs()
    row = Event.objects.get()
    receive(message(1, id=str(row.uuid)), message(2, id="gone with an older database"))
    assert numbers_of_jobs() == [1, 2]
    told.thing_moved("a", 3)
    run_jobs()
    assert sorted(moved("default")) == ["moved:a:1", "moved:a:2", "moved:a:3"]


# Who sends


def test_one_worker_sends_as_long_as_it_lives(node):
    other = Node.objects.create(hostname="there", pid=2)
    Relay.objects.create(pk=1)
    assert publisher.may_send("default")
    worker_state.node, mine = other.pk, worker_state.node
    assert not publisher.may_send("default")
    Node.objects.filter(pk=mine).update(dead_at=timezone.now())
    assert publisher.may_send("default")
    worker_state.node = mine
    assert not publisher.may_send("default"), "its node is dead"
