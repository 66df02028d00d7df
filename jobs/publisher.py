"""Rows to broker, batched. The only place that talks to kombu's producers and connections."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import kombu
from celery import signals
from celery.local import Proxy
from django.utils import timezone
from kombu.connection import ConnectionPool

from jobs import lifecycle
from jobs.conf import conf
from jobs.models import Job
from jobs.syncpoints import reach

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("jobs")

#: The version of our message header; a worker reads this version and the one before.
HEADER_VERSION = 1

#: Seconds until a message that could not be built is tried again; meanwhile it is in nobody's way.
UNPUBLISHABLE_PAUSE = 60.0


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
