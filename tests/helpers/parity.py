"""The same call by Celery and by us: what the bodies see of it."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import celery
import pytest
from celery import Celery
from celery.app.trace import trace_task_ret
from celery.worker.request import Request
from kombu import Exchange, Queue

from jobs.models import Job
from jobs.task import Task
from jobs.worker.runner import Runner
from tests.helpers.harness import claim

QUEUES = (
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("mail", Exchange("mail"), routing_key="mail"),
    Queue("topical", Exchange("topics", type="topic"), routing_key="topical.#"),
)


LATER = datetime.datetime(2031, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


ID = "0b7f8cc1-5a5b-4c39-9a3e-4a8a3ad4c1a0"


#: What the bodies have seen, run by run.
seen: list[dict[str, Any]] = []


def make_app(base: type) -> Celery:
    app = Celery("parity", task_cls=base, set_as_current=False, broker="memory://")
    app.conf.task_queues = QUEUES
    app.conf.result_backend = "cache+memory://"
    app.conf.task_routes = {"parity.routed": {"queue": "mail", "priority": 7}}

    @app.task(name="parity.add", shared=False, bind=True)
    def add(self, x, y=0):
        seen.append(dict(vars(self.request)))
        return x + y

    @app.task(name="parity.routed", shared=False, bind=True)
    def routed(self, x):
        seen.append(dict(vars(self.request)))

    @app.task(
        name="parity.limited",
        shared=False,
        bind=True,
        time_limit=60,
        soft_time_limit=50,
        priority=3,
        ignore_result=True,
        compression="zlib",
    )
    def limited(self, x):
        seen.append(dict(vars(self.request)))

    app.finalize()
    return app


def take(app: Celery) -> list[Any]:
    """Every message in the broker."""
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        bound = [queue(channel) for queue in QUEUES]
        for queue in bound:
            queue.declare()
        return [message for queue in bound for message in iter(lambda queue=queue: queue.get(no_ack=True), None)]


class Pool:
    """Runs in this process what a worker hands to its pool."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def apply_async(self, target: Any, args: Any, **kwargs: Any) -> None:
        trace_task_ret(*args, app=self.app)


@contextmanager
def current(app: Celery) -> Iterator[None]:
    """What is sent for a task that was sent asks for it."""
    before = celery.current_app._get_current_object()
    app.set_current()
    take(app)
    seen.clear()
    try:
        yield
    finally:
        before.set_current()


def seen_by_stock(app: Celery, call: Any) -> list[dict[str, Any]]:
    """What the bodies see if Celery sends the call, and a worker of Celery's runs it."""
    with current(app):
        call(app)
        while messages := take(app):
            for message in messages:
                made = Request(message, app=app, hostname="here", task=app.tasks[message.headers["task"]])
                made.execute_using_pool(Pool(app))
    return [comparable(app, context) for context in seen]


def seen_by_ours(app: Celery, call: Any) -> list[dict[str, Any]]:
    runner = Runner(app, "here")
    with current(app):
        call(app)
        while jobs := list(Job.objects.filter(state="ready")):
            # Celery gives the members of a group random ids.
            for job in sorted(jobs, key=lambda job: job.id.hex if job.task == "jobs.ended" else json.dumps(job.args)):
                runner.run_alone(claim(job.pk))
        assert take(app) == [], "no message is sent"
    runner.slot.free()
    return [comparable(app, context) for context in seen]


#: Where it ran, the run itself, and how a body was packed.
OURS = ("hostname", "jobs_run", "compression")


#: Of a message that travelled.
TRAVEL = ("delivery_mode", "delivery_info", "delivery_tag", "body_encoding", "expiration")


def comparable(app: Celery, context: dict[str, Any]) -> dict[str, Any]:
    """Without what a job has not got: the marks of a journey, and an address for answers that nobody waits for."""
    for name in OURS:
        context.pop(name, None)
    context["properties"] = {name: value for name, value in context["properties"].items() if name not in TRAVEL}
    # A list in place of the tuple that the caller gave; no step that follows, in place of an empty list of them.
    context["argsrepr"] = re.sub(r"^\[(.*)\]$", r"(\1)", context["argsrepr"])
    context["chain"] = context["chain"] or None
    for where in (context, context["properties"]):
        where["reply_to"] = where["reply_to"] if where["reply_to"] != app.thread_oid else ""
    return json.loads(json.dumps(context, default=str))


ROUTES = {
    "exchange and routing key": {"exchange": "topics", "routing_key": "topical.x"},
    "topic queue": {"queue": "topical"},
}

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
    "compression": {"compression": "zlib"},
    "delivery mode": {"delivery_mode": 1},
    "reply_to": {"reply_to": "my-reply-queue"},
    "root and parent": {"root_id": ID, "parent_id": ID},
    "group": {"group_id": "g1", "group_index": 4},
    "retries": {"retries": 2},
    "stamps": {"stamped_headers": ["stamp"], "stamp": "value"},
    "plumbing": {"retry": True, "retry_policy": {"max_retries": 1}, "add_to_parent": False},
    "all": {
        "queue": "mail",
        "priority": 2,
        "expires": LATER,
        "time_limit": 30,
        "soft_time_limit": 20,
        "headers": {"a": "b"},
        "shadow": "s",
    },
}


#: Calls with follow-ups.
LINKS = {
    "link": {"link": "add.s(3)"},
    "links": {"link": ["add.s(3)", "add.s(4)"], "link_error": "add.si(1, 2)"},
}


def resolve(app: Celery, options: dict) -> dict:
    """Signatures belong to an app: made from their text, for each of the two."""
    add = app.tasks["parity.add"]

    def one(value):
        return eval(value, {"add": add}) if isinstance(value, str) and value.startswith("add.") else value

    return {key: [one(v) for v in value] if isinstance(value, list) else one(value) for key, value in options.items()}


def ids_replaced(contexts: list[dict]) -> list[dict]:
    """By their arguments, random ids numbered in the order of their appearance."""
    numbers: dict[str, str] = {}
    text = json.dumps(sorted(contexts, key=lambda context: json.dumps(context["args"])), sort_keys=True)

    def number(match) -> str:
        return numbers.setdefault(match.group(), f"id-{len(numbers)}")

    return json.loads(re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", number, text))


@pytest.fixture(scope="module")
def stock() -> Celery:
    return make_app(celery.Task)


@pytest.fixture(scope="module")
def ours() -> Celery:
    return make_app(Task)
