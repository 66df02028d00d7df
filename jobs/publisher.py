"""Rows to broker, batched. The only place that talks to kombu's producers.

A message is composed once, at the call, by Celery's own functions (:func:`compose`), and stored with the
row; whoever publishes it later (the caller after its commit, a relay after a retry) sends the same message.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import kombu
from celery import signals
from celery.local import Proxy
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601
from django.utils import timezone
from kombu.connection import ConnectionPool
from kombu.utils.json import dumps

from jobs import lifecycle
from jobs.arguments import jsonable, normalize
from jobs.conf import conf
from jobs.models import Job, State
from jobs.syncpoints import reach

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("jobs")

#: The version of our message header; a worker reads this version and the one before.
HEADER_VERSION = 1

#: Seconds until a message that could not be built is tried again; meanwhile it is in nobody's way.
UNPUBLISHABLE_PAUSE = 60.0

#: Accepted by ``apply_async`` because groups and beat pass them, and not kept: how a message travels is ours.
PLUMBING = frozenset(
    {
        "producer",
        "connection",
        "publisher",
        "router",
        "add_to_parent",
        "result_cls",
        "retry",
        "retry_policy",
        "timeout",
        "confirm_timeout",
        "task_type",
        "event_dispatcher",
    }
)


class _Composed(Exception):
    """Carries a finished message out of Celery's sender, in place of publishing it."""


class _Recorder:
    """Stands where Celery expects a producer and takes the message instead of sending it."""

    connection = None

    def publish(self, body: Any, **how: Any) -> None:
        raise _Composed(body, how)


def compose(app: Celery, task: Any, task_id: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Job:
    """Build the unsaved row of a call, with the message that Celery itself would send.

    Routers and the receivers of ``before_task_publish`` run here, in the caller's context.

    Parameters:
        options: what ``apply_async`` was given, merged with the task's own execution options; ``countdown``
            and ``eta`` are in seconds and an aware datetime.

    Raises:
        TypeError, ValueError: an argument or an option that cannot be kept; names it, and the cure.
    """
    plain_args, plain_kwargs = normalize(args, kwargs)
    args, kwargs = args or (), kwargs or {}
    options = {key: value for key, value in options.items() if key not in PLUMBING}
    _check_serializer(options.pop("serializer", None) or app.conf.task_serializer)
    run_at = _run_at(app, options.pop("eta", None), options.pop("countdown", None))
    expires_at = _moment(app, options.pop("expires", None), "expires")
    for name in ("queue", "exchange"):
        options[name] = _by_name(app, name, options.get(name))

    retries = options.pop("retries", 0)
    ignore_result = options.pop("ignore_result", None)
    options = app.amqp.router.route(
        {key: value for key, value in options.items() if value is not None or key not in ("queue", "exchange")},
        options.pop("route_name", None) or task.name,
        args,
        kwargs,
        task,
    )
    root_id, parent_id = options.pop("root_id", None), options.pop("parent_id", None)
    if parent := app.current_worker_task:
        root_id = root_id or parent.request.root_id or parent.request.id
        parent_id = parent_id or parent.request.id
        if app.conf.task_inherit_parent_priority:
            options.setdefault("priority", (parent.request.delivery_info or {}).get("priority"))
    reply_to = options.pop("reply_to", None) or app.thread_oid
    message = app.amqp.create_task_message(
        task_id,
        task.name,
        args,
        kwargs,
        None,
        None,
        options.pop("group_id", None),
        options.pop("group_index", None),
        expires_at,
        retries,
        options.pop("chord", None),
        maybe_list(options.pop("link", None)),
        maybe_list(options.pop("link_error", None)),
        reply_to,
        options.pop("time_limit", None),
        options.pop("soft_time_limit", None),
        app.conf.task_send_sent_event,
        root_id,
        parent_id,
        options.pop("shadow", None),
        options.pop("chain", None),
        ignore_result=ignore_result,
        replaced_task_nesting=options.pop("replaced_task_nesting", 0),
        **options,
    )
    for stamp in options.pop("stamped_headers", None) or []:
        options.pop(stamp)
    queue = options.get("queue")
    try:
        app.amqp.send_task_message(_Recorder(), task.name, message, retry=False, **options)
    except _Composed as composed:
        body, how = composed.args
    else:  # pragma: no cover
        raise RuntimeError("Celery did not publish the message it composed")
    headers = how.pop("headers")
    for name in ("retry", "retry_policy", "serializer", "timeout", "confirm_timeout", "expiration"):
        how.pop(name, None)
    declare = how.pop("declare", None) or []
    priority = how.get("priority")
    for name in ("immediate", "mandatory"):
        if how.get(name) is None:
            how.pop(name, None)
    stored = _stored(
        {
            "publish": {key: getattr(value, "name", value) for key, value in how.items() if value is not None},
            "declare": [entity.name for entity in declare],
            "embed": body[2],
            "event": message.sent_event,
        },
        "the options",
    )
    job = Job(
        id=uuid.UUID(task_id),
        task=task.name,
        args=plain_args,
        kwargs=plain_kwargs,
        options=stored,
        headers=_stored(headers, "headers"),
        queue=_queue_name(queue, declare, how),
        priority=priority,
        expires_at=expires_at,
        retries=retries,
        parent_id=_as_uuid(parent_id),
        root_id=_as_uuid(root_id) or uuid.UUID(task_id),
        state=State.READY if run_at is None else State.SCHEDULED,
    )
    if run_at is not None:
        job.run_at = run_at
    return job


def _check_serializer(name: str) -> None:
    if name not in ("json", "application/json"):
        raise ValueError(f"serializer={name!r} cannot be kept: a job's arguments are JSON; remove the option")


def _run_at(app: Celery, eta: Any, countdown: Any) -> Any:
    """None for now; an expression on the database's clock for a countdown; the moment itself for an eta."""
    if eta:
        moment = _moment(app, eta, "eta")
        return None if moment is None or moment <= timezone.now() else moment
    if countdown:
        seconds = float(countdown)
        return lifecycle.now_plus(seconds) if seconds > 0 else None
    return None


def _moment(app: Celery, value: Any, name: str) -> datetime.datetime | None:
    if value is None:
        return None
    if isinstance(value, int | float):
        return timezone.now() + datetime.timedelta(seconds=value)
    if isinstance(value, str):
        value = maybe_iso8601(value)
    if isinstance(value, datetime.datetime):
        return value if timezone.is_aware(value) else value.replace(tzinfo=app.timezone)
    raise TypeError(f"{name} must be a datetime or a number of seconds, not {type(value).__name__}")


def _by_name(app: Celery, name: str, value: Any) -> Any:
    """A kombu entity is stored by its name, so the app of whoever publishes later has to know it."""
    if isinstance(value, kombu.Queue):
        if value.name not in app.amqp.queues:
            raise ValueError(f"queue={value!r} cannot be kept: add it to the setting task_queues, then pass its name")
        return value.name
    if isinstance(value, kombu.Exchange):
        if all(queue.exchange.name != value.name for queue in app.amqp.queues.values()):
            raise ValueError(f"exchange={value!r} cannot be kept: use it in a queue of the setting task_queues")
        return value.name
    return value


def _queue_name(queue: Any, declare: Sequence[Any], how: Mapping[str, Any]) -> str:
    name = getattr(queue, "name", queue) or next((entity.name for entity in declare), None) or how.get("routing_key")
    return str(name or "")


def _stored(value: Any, where: str) -> Any:
    """Plain JSON of what Celery's own encoder makes of the value (signatures, dates, UUIDs)."""
    try:
        return jsonable(json.loads(dumps(value)), where)
    except (TypeError, kombu.exceptions.EncodeError) as exc:
        raise TypeError(f"{where} of this call cannot be stored as JSON: {exc}") from exc


def _as_uuid(value: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(value)) if value else None
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, str(value))


# Publishing


def send(producer: kombu.Producer, app: Celery, job: Job, using: str) -> None:
    """Publish the job's message once, without retries.

    Raises:
        kombu.exceptions.OperationalError, and what the transport raises.
    """
    options = job.options
    headers = {
        **job.headers,
        "retries": job.retries,
        "jobs": {"v": HEADER_VERSION, "db": using, "at": time.time()},
    }
    how = dict(options["publish"])
    if job.expires_at is not None:
        how["expiration"] = max(0.0, (job.expires_at - timezone.now()).total_seconds())
    body = (job.args, job.kwargs, options["embed"])
    producer.publish(
        body,
        serializer="json",
        headers=headers,
        declare=[
            app.amqp.queues[name]
            for name in options["declare"]
            if name in app.amqp.queues or app.amqp.queues.create_missing
        ],
        retry=False,
        **how,
    )
    signals.after_task_publish.send(
        sender=job.task, body=body, headers=headers, exchange=how.get("exchange"), routing_key=how.get("routing_key")
    )
    if options["event"]:
        event = {
            **options["event"],
            "queue": job.queue,
            "exchange": how.get("exchange"),
            "routing_key": how.get("routing_key"),
        }
        app.amqp._event_dispatcher.publish("task-sent", event, producer, retry=False)


def publish(jobs: Iterable[Job], using: str, app: Celery, budget: float | None = None) -> list[Job]:
    """Publish what can be published; return the jobs whose message certainly or possibly did not leave.

    Never raises for a broker in trouble. One message that cannot be built is reported, postponed, and does
    not stop the others.

    Parameters:
        budget: stop after this many seconds; the rest is returned.
    """
    waiting = list(jobs)
    reach("before_publish")
    try:
        with _pool(app).acquire(block=True, timeout=conf().PUBLISH_CONNECT_TIMEOUT) as connection:
            was_open, began = connection.connected, time.monotonic()
            try:
                left = _send_all(connection, app, waiting, using, budget)
            except _errors(app):
                _abandon(connection)
                if not was_open or time.monotonic() - began > conf().PUBLISH_CONNECT_TIMEOUT:
                    raise
                # It failed at once: the connection may only have grown stale while this process was idle.
                left = _send_all(connection, app, waiting, using, budget)
    except _errors(app) as exc:
        # What left and what did not is unknown, and a batch is discarded as a whole.
        logger.warning("the broker took no message: %r", exc, extra={"action": "broker_down"})
        return waiting
    reach("after_publish")
    return left


def _send_all(
    connection: kombu.Connection, app: Celery, jobs: list[Job], using: str, budget: float | None
) -> list[Job]:
    _connect(connection)
    producer = app.amqp.Producer(connection.default_channel, auto_declare=False)
    deadline = None if budget is None else time.monotonic() + budget
    with producer.batch(conf().BATCH):
        for index, job in enumerate(jobs):
            if deadline is not None and time.monotonic() > deadline:
                return jobs[index:]
            try:
                send(producer, app, job, using)
            except _errors(app):
                raise
            except Exception as exc:
                # Not the broker's doing: the row itself, or a queue that this process does not know.
                logger.exception("job %s cannot be published", job.pk, extra=_fields(job, "publish_failed"))
                lifecycle.postpone(job, UNPUBLISHABLE_PAUSE, exc)
    return []


def _connect(connection: kombu.Connection) -> None:
    """Connect once, to the first broker of the list that answers."""
    if not connection.connected:
        tries = max(1, len(connection.alt))
        connection.ensure_connection(max_retries=tries - 1, timeout=tries * conf().PUBLISH_CONNECT_TIMEOUT)


def _errors(app: Celery) -> tuple[type[BaseException], ...]:
    connection = _pool(app).connection
    return (
        kombu.exceptions.KombuError,
        OSError,
        TimeoutError,
        *connection.connection_errors,
        *connection.channel_errors,
    )


def _fields(job: Job, action: str) -> dict[str, Any]:
    return {"action": action, "job": str(job.pk), "task": job.task, "queue": job.queue}


class _Breaker:
    """After a failed publish this process stops trying for a while: only one caller pays per while."""

    def __init__(self) -> None:
        self.closed_again = 0.0

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self.closed_again

    def trip(self) -> None:
        self.closed_again = time.monotonic() + conf().BREAKER


breaker = _Breaker()


def may_publish_inline() -> bool:
    return conf().PUBLISH == "inline" and not breaker.is_open


def publish_inline(jobs: list[Job], using: str, app: Celery) -> None:
    """The one bounded publish after a commit. Never raises; what does not leave is left to the relay."""
    try:
        if not jobs:
            return
        left = jobs
        if not breaker.is_open:
            left = publish(jobs, using, app, budget=conf().PUBLISH_BUDGET)
            if len(left) == len(jobs):
                breaker.trip()
        if left:
            lifecycle.undispatch([job.pk for job in left], using)
    except Exception:
        # The row stays, and the relay publishes it after its grace.
        logger.exception("publish after the commit failed", extra={"action": "publish_failed"})


# Connections

_pools: WeakKeyDictionary[Any, ConnectionPool] = WeakKeyDictionary()
_pools_lock = threading.Lock()


def _pool(app: Celery) -> ConnectionPool:
    if isinstance(app, Proxy):
        app = app._get_current_object()
    with _pools_lock:
        if app not in _pools:
            _pools[app] = _connection(app).Pool(limit=10)
        return _pools[app]


def _connection(app: Celery) -> kombu.Connection:
    """A connection of our own: a request must not wait for the broker as long as a worker may."""
    settings = conf()
    options = dict(app.conf.broker_transport_options or {})
    probe = app.connection_for_write()
    driver = probe.transport.driver_type
    if driver == "redis":
        options |= {
            "socket_connect_timeout": settings.PUBLISH_CONNECT_TIMEOUT,
            "socket_timeout": settings.PUBLISH_TIMEOUT,
        }
        # Retries of the client library would multiply the bound, and they switch batches off.
        for name in ("retry_on_timeout", "retry_on_error", "retry"):
            options.pop(name, None)
    elif driver == "amqp":
        options |= {
            "confirm_publish": True,
            "read_timeout": settings.PUBLISH_TIMEOUT,
            "write_timeout": settings.PUBLISH_TIMEOUT,
        }
    return app.connection_for_write(
        connect_timeout=settings.PUBLISH_CONNECT_TIMEOUT, transport_options=options, heartbeat=0
    )


def _abandon(connection: kombu.Connection) -> None:
    """Close without waiting: a RabbitMQ that hangs would not answer the goodbye either."""
    if connection.transport.driver_type == "amqp":
        connection.collect()
    else:
        connection.close()


def is_up(app: Celery) -> bool:
    """Whether the broker can be reached; cheap while a connection is open."""
    try:
        with _pool(app).acquire(block=True, timeout=conf().PUBLISH_CONNECT_TIMEOUT) as connection:
            _connect(connection)
            return True
    except _errors(app) as exc:
        logger.debug("the broker cannot be reached: %r", exc)
        return False


def depth(app: Celery, queue: str) -> int | None:
    """How many messages wait in the broker's queue; None if the broker does not say."""
    try:
        with _pool(app).acquire(block=True, timeout=conf().PUBLISH_CONNECT_TIMEOUT) as connection:
            try:
                _connect(connection)
                with connection.channel() as channel:
                    return int(channel.queue_declare(queue=queue, passive=True).message_count)
            except _errors(app):
                _abandon(connection)
                raise
    except _errors(app) as exc:
        if str(getattr(exc, "reply_code", None)) == "404":
            return 0  # no such queue: nothing waits in it
        logger.warning("the broker does not say how long %r is: %r", queue, exc, extra={"action": "broker_down"})
        return None


def forget_connections() -> None:
    """Close what is open, so that the next publish declares its queues again (the broker may be empty)."""
    with _pools_lock:
        for pool in _pools.values():
            pool.force_close_all()
        _pools.clear()


_inherited: list[Any] = []


def _after_fork() -> None:
    global _pools, _pools_lock
    # The parent's sockets: kept, so that no finalizer says a word on them, and never used.
    _inherited.append(_pools)
    _pools, _pools_lock = WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
