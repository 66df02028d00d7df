"""The message that leaves is the one that Celery itself would have sent, field by field."""

from __future__ import annotations

import base64
import datetime
import json
import uuid

import celery
import pytest
from celery import Celery, chain, chord, group, signals
from django.utils import timezone
from kombu import Exchange, Queue
from kombu.common import Broadcast

from jobs import publisher
from jobs.models import Job
from jobs.task import Task

pytestmark = pytest.mark.django_db(transaction=True)

QUEUES = (
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("mail", Exchange("mail"), routing_key="mail"),
    Queue("topical", Exchange("topics", type="topic"), routing_key="topical.#"),
)
LATER = datetime.datetime(2031, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
ID = "0b7f8cc1-5a5b-4c39-9a3e-4a8a3ad4c1a0"


def make_app(base: type) -> Celery:
    app = Celery("parity", task_cls=base, set_as_current=False, broker="memory://")
    app.conf.task_queues = QUEUES
    app.conf.result_backend = "cache+memory://"
    app.conf.task_routes = {"parity.routed": {"queue": "mail", "priority": 7}}

    @app.task(name="parity.add", shared=False)
    def add(x, y=0):
        return x + y

    @app.task(name="parity.routed", shared=False)
    def routed(x):
        return x

    @app.task(
        name="parity.limited",
        shared=False,
        time_limit=60,
        soft_time_limit=50,
        priority=3,
        ignore_result=True,
        compression="zlib",
    )
    def limited(x):
        return x

    app.finalize()
    return app


@pytest.fixture(autouse=True)
def _left_to_the_relay(settings):
    settings.JOBS = {**settings.JOBS, "PUBLISH": "relay"}


@pytest.fixture(scope="module")
def stock() -> Celery:
    return make_app(celery.Task)


@pytest.fixture(scope="module")
def ours() -> Celery:
    return make_app(Task)


def drain(app: Celery) -> list[dict]:
    """Every raw message in the broker, with its queue."""
    messages = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        for queue in QUEUES:
            bound = queue(channel)
            bound.declare()
            while message := bound.get(no_ack=True):
                messages.append(
                    {
                        "queue": queue.name,
                        "body": json.loads(
                            message.decode() if isinstance(message.decode(), str) else json.dumps(message.decode())
                        ),
                        "headers": dict(message.headers),
                        "properties": dict(message.properties),
                        "content": (message.content_type, message.content_encoding),
                    }
                )
    return messages


def send(app: Celery, call) -> list[dict]:
    drain(app)
    call(app)
    if app.Task is not celery.Task and issubclass(app.Task, Task):
        jobs = list(Job.objects.order_by("created_at"))
        assert publisher.publish(jobs, "default", app) == []
    return drain(app)


def comparable(message: dict) -> dict:
    """Without what may differ: our header, the origin, and what the transport makes up."""
    message["headers"].pop("jobs", None)
    for name in ("origin", "eta"):
        message["headers"].pop(name, None)
    properties = message["properties"]
    properties.pop("delivery_tag", None)
    if "expiration" in properties:
        properties["expiration"] = round(float(properties["expiration"]) / 10_000)
    properties["reply_to"] = bool(properties.get("reply_to"))
    return message


OPTIONS = {
    "plain": {},
    "kwargs": {"kwargs": {"y": 2}},
    "task_id": {},
    "queue": {"queue": "mail"},
    "priority": {"priority": 5},
    "queue and priority": {"queue": "mail", "priority": 0},
    "expires absolute": {"expires": LATER},
    "time limits": {"time_limit": 30, "soft_time_limit": 20},
    "headers": {"headers": {"tenant": "acme", "nested": {"a": 1}}},
    "shadow": {"shadow": "another name"},
    "ignore_result": {"ignore_result": True},
    "exchange and routing key": {"exchange": "topics", "routing_key": "topical.x"},
    "topic queue": {"queue": "topical"},
    "compression": {"compression": "zlib"},
    "delivery mode": {"delivery_mode": 1},
    "link": {"link": "add.s(3)"},
    "links": {"link": ["add.s(3)", "add.s(4)"], "link_error": "add.si(1, 2)"},
    "reply_to": {"reply_to": "my-reply-queue"},
    "root and parent": {"root_id": ID, "parent_id": ID},
    "group": {"group_id": "g1", "group_index": 4},
    "retries": {"retries": 2},
    "stamps": {"stamped_headers": ["stamp"], "stamp": "value"},
    "plumbing": {"retry": True, "retry_policy": {"max_retries": 1}, "add_to_parent": False},
    "correlation": {"message_id": "m-1"},
    "all": {
        "queue": "mail",
        "priority": 2,
        "expires": LATER,
        "time_limit": 30,
        "soft_time_limit": 20,
        "headers": {"a": "b"},
        "shadow": "s",
        "link": "add.s(1)",
    },
}


def resolve(app: Celery, options: dict) -> dict:
    """Signatures belong to an app: made from their text, for each of the two."""
    add = app.tasks["parity.add"]

    def one(value):
        return eval(value, {"add": add}) if isinstance(value, str) and value.startswith("add.") else value

    return {key: [one(v) for v in value] if isinstance(value, list) else one(value) for key, value in options.items()}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("task", ["add", "limited", "routed"])
def test_message_equals_the_stock_one(stock, ours, name, task):
    options = OPTIONS[name]
    if task != "add" and "kwargs" in options:
        pytest.skip("takes no such argument")

    def call(app):
        return app.tasks[f"parity.{task}"].apply_async((1,), task_id=ID, **resolve(app, options))

    [expected] = send(stock, call)
    [sent] = send(ours, call)
    assert comparable(sent) == comparable(expected)


def test_expires_in_seconds_counts_on_the_clock_of_the_database(ours, settings, monkeypatch):
    """The caller's clock is an hour behind: neither the row nor the broker takes the job for expired."""
    settings.JOBS = {**settings.JOBS, "PUBLISH": "inline"}
    now = timezone.now
    monkeypatch.setattr("django.utils.timezone.now", lambda: now() - datetime.timedelta(hours=1))
    drain(ours)
    ours.tasks["parity.add"].apply_async((1,), expires=60)
    [sent] = drain(ours)
    assert 50 < (Job.objects.get().expires_at - now()).total_seconds() < 70
    assert 50_000 < float(sent["properties"]["expiration"]) <= 60_000


def ids_replaced(messages: list[dict]) -> list[dict]:
    """Random ids numbered in the order of their appearance."""
    text = json.dumps([comparable(message) for message in messages], sort_keys=True)
    seen: dict[str, str] = {}
    import re

    def number(match) -> str:
        return seen.setdefault(match.group(), f"id-{len(seen)}")

    return json.loads(re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", number, text))


CANVAS = {
    "chain": lambda add: chain(add.s(1, 2), add.s(3), add.s(4)),
    "group": lambda add: group(add.s(1, 1), add.s(2, 2), add.s(3, 3)),
    "group in a chain": lambda add: chain(add.s(1, 2), group(add.s(3), add.s(4))),
    "immutable": lambda add: chain(add.si(1, 2), add.si(3, 4)),
    "link on a chain": lambda add: chain(add.s(1, 2), add.s(3)).on_error(add.si(0, 0)),
    "set": lambda add: add.s(1).set(queue="mail", priority=4),
}


@pytest.mark.parametrize("name", CANVAS)
def test_canvas_equals_the_stock_one(stock, ours, name):
    def call(app):
        CANVAS[name](app.tasks["parity.add"]).apply_async()

    expected = send(stock, call)
    sent = send(ours, call)
    assert ids_replaced(sent) == ids_replaced(expected)
    assert len(sent) == (3 if name == "group" else 1)


def test_chord_travels_as_celery_sends_it(stock, ours):
    def call(app):
        add = app.tasks["parity.add"]
        chord([add.s(1, 1), add.s(2, 2)], add.s(5)).apply_async()

    expected = [message["body"][2]["chord"] for message in send(stock, call)]
    sent = [message["body"][2]["chord"] for message in send(ours, call) if message["headers"]["task"] == "parity.add"]
    assert len(sent) == 2
    for one, other in zip(sent, expected, strict=False):
        assert (one["task"], one["args"]) == (other["task"], other["args"])


def test_a_message_carries_our_header_and_no_eta(ours):
    [message] = send(ours, lambda app: app.tasks["parity.add"].apply_async((1,), countdown=0.0))
    assert message["headers"]["jobs"]["v"] == 1
    assert message["headers"]["jobs"]["db"] == "default"
    assert message["headers"]["eta"] is None


def test_headers_of_signal_receivers_are_taken_at_the_call(ours):
    def inject(headers, **kwargs):
        headers["trace"] = "from the request"

    signals.before_task_publish.connect(inject)
    try:
        ours.tasks["parity.add"].apply_async((1,))
    finally:
        signals.before_task_publish.disconnect(inject)
    assert Job.objects.get().headers["trace"] == "from the request"
    [message] = send(ours, lambda app: None)
    assert message["headers"]["trace"] == "from the request"


def test_after_task_publish_is_sent_once_when_it_was_published(ours):
    seen = []

    def note(sender, headers, **kwargs):
        seen.append((sender, headers["id"]))

    signals.after_task_publish.connect(note)
    try:
        result = ours.tasks["parity.add"].apply_async((1,))
        assert seen == []
        send(ours, lambda app: None)
    finally:
        signals.after_task_publish.disconnect(note)
    assert seen == [("parity.add", result.id)]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"serializer": "pickle"}, ValueError, "serializer"),
        ({"queue": Queue("unknown-queue")}, ValueError, "task_queues"),
        ({"exchange": Exchange("unknown")}, ValueError, "task_queues"),
        ({"queue": Broadcast("everybody")}, ValueError, "EXCLUDE"),
        ({"declare": [Exchange("unknown")]}, ValueError, "task_queues"),
        ({"compression": "bogus"}, KeyError, "bogus"),
        ({"task_id": "not-a-uuid"}, ValueError, "UUID"),
        ({"eta": "yesterday?"}, ValueError, "."),
        ({"expires": object()}, TypeError, "expires"),
        ({"headers": {"x": object()}}, TypeError, "headers"),
    ],
)
def test_an_option_that_cannot_be_kept_raises(ours, options, error, text):
    with pytest.raises(error, match=text):
        ours.tasks["parity.add"].apply_async((1,), **options)
    assert not Job.objects.exists()


def test_a_known_queue_object_is_kept_by_name(ours):
    ours.tasks["parity.add"].apply_async((1,), queue=QUEUES[1])
    assert Job.objects.get().queue == "mail"


def test_task_id_of_an_existing_row_raises(ours):
    from django.db import IntegrityError

    key = str(uuid.uuid4())
    ours.tasks["parity.add"].apply_async((1,), task_id=key)
    with pytest.raises(IntegrityError):
        ours.tasks["parity.add"].apply_async((1,), task_id=key)


def test_body_is_plain_json(ours):
    ours.tasks["parity.add"].apply_async((1,))
    job = Job.objects.get()
    with ours.connection_for_write() as connection:
        channel = connection.default_channel
        publisher.send(ours.amqp.Producer(channel, auto_declare=False), ours, job, "default")
        raw = channel._get("celery")
    assert json.loads(base64.b64decode(raw["body"]))[0] == [1]


def test_countdown_wins_over_eta_as_in_celery(ours):
    ours.tasks["parity.add"].apply_async((1,), eta=LATER, countdown=10)
    job = Job.objects.get()
    assert job.run_at.year < LATER.year
