"""Rows to broker, batched. The only place that talks to kombu's producers and connections."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import kombu
from celery import signals
from celery.backends.rpc import RPCBackend
from celery.local import Proxy
from celery.utils.nodenames import anon_nodename
from celery.utils.time import maybe_iso8601
from django.utils import timezone

from jobs import lifecycle, message, tracing
from jobs.conf import conf
from jobs.logs import log
from jobs.models import Job
from jobs.syncpoints import reach

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("jobs")

#: Seconds until a message that could not be built is tried again; meanwhile it is in nobody's way.
UNPUBLISHABLE_PAUSE = 60.0

#: How the error of a job begins whose message did not leave.
REFUSED, UNBUILT, FULL = "the broker refused the message", "the message could not be built", "the queue has no room"

#: Seconds until a message is tried again for which the broker's queue had no room.
FULL_PAUSE = 2.0


def send(producer: kombu.Producer, app: Celery, job: Job, using: str, by_caller: bool = True) -> None:
    """Publish the job's message once, without retries.

    Parameters:
        by_caller: in the process whose clock set ``expires_at``.

    Raises:
        kombu.exceptions.OperationalError, and what the transport raises.
    """
    options = job.options
    expires = job.expires_at
    if hasattr(expires, "resolve_expression"):
        # The database has set the moment; the caller, in its own time, knows it as well.
        expires = maybe_iso8601(job.headers["expires"])
    headers = {
        **job.headers,
        "retries": job.retries,
        "expires": expires and expires.isoformat(),
        "jobs": {"v": message.version_of(job.options), "db": using, "at": time.time()},
    }
    how = dict(options["publish"])
    if expires is not None and by_caller:
        # Another machine's clock must not have the broker drop a message before its time.
        how["expiration"] = max(0.0, (expires - timezone.now()).total_seconds())
    body = (job.args, job.kwargs, options["embed"])
    # An exchange without a way for it would drop the message and say yes (RabbitMQ; the others know no such flag).
    how.setdefault("mandatory", True)
    if isinstance(app.backend, RPCBackend) and headers.get("origin") == anon_nodename():
        # The caller's own reply queue has to be there before the result is.
        app.backend.on_task_call(producer, str(job.pk))
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
    exchange, routing_key = how.get("exchange"), how.get("routing_key")
    with tracing.apart():
        signals.after_task_publish.send(
            sender=job.task, body=body, headers=headers, exchange=exchange, routing_key=routing_key
        )
    if options["event"]:
        event = {
            **options["event"],
            "queue": job.queue,
            "exchange": how.get("exchange"),
            "routing_key": how.get("routing_key"),
        }
        app.amqp._event_dispatcher.publish("task-sent", event, producer, retry=False)


def publish(
    jobs: Iterable[Job], using: str, app: Celery, budget: float | None = None, patient: bool = False
) -> list[Job]:
    """Publish what can be published; return the jobs whose message certainly or possibly did not leave.

    Never raises for a broker in trouble. A message that cannot be built, or that the broker refuses, is
    reported, postponed, and does not stop the others.

    Parameters:
        budget: stop after this many seconds; the rest is returned.
        patient: wait for the broker as long as a worker may, not as short as a request must.
    """
    waiting = list(jobs)
    batched = True
    broker = _broker(app, patient)
    deadline = None if budget is None else time.monotonic() + budget
    reach("before_publish")
    try:
        with broker.connection() as connection:
            stale = connection.connected
            while waiting:
                began = time.monotonic()
                try:
                    waiting = _send_all(broker, connection, waiting, using, deadline, batched)
                    break
                except _Refused as refused:
                    broker.abandon(connection)
                    _postpone(refused.job, refused.reason, REFUSED)
                    waiting = refused.unsent
                    if deadline is not None and time.monotonic() > deadline:
                        break
                except _Lost as lost:
                    broker.abandon(connection)
                    waiting = lost.unsent
                    if batched and _refuses_one(lost.__cause__):
                        # It took the others of the batch, and does not say which these are: one by one they go twice,
                        # and only this time.
                        batched = False
                        continue
                    # It failed at once: the connection may only have grown stale while this process was idle.
                    if not stale or time.monotonic() - began > broker.connect_timeout:
                        raise
                    stale = False
    except _Lost as lost:
        text = "the broker took no message; what is committed is sent when it is back: %r"
        logger.warning(text, lost.__cause__, extra={"action": "broker_down"})
        return waiting
    except broker.lost_errors as exc:
        logger.warning("no connection to the broker is free: %r", exc, extra={"action": "broker_down"})
        return waiting
    reach("after_publish")
    return waiting


class _Lost(Exception):
    """The connection failed; what did not certainly leave is ``unsent``."""

    def __init__(self, unsent: list[Job]) -> None:
        super().__init__()
        self.unsent = unsent


class _Refused(_Lost):
    """The broker answered, and refused this one message (its queue, its exchange)."""

    def __init__(self, unsent: list[Job], job: Job, reason: Exception) -> None:
        super().__init__(unsent)
        self.job = job
        self.reason = reason


def _refuses_one(exc: BaseException | None) -> bool:
    """Whether Redis refused a command for its key, in a batch; all else that it refuses, it refuses to everybody."""
    cause = getattr(exc, "__cause__", None)
    return "WRONGTYPE" in str(cause) or (type(cause).__name__ == "NoPermissionError" and " key" in str(cause))


def _send_all(
    broker: _Broker, connection: kombu.Connection, jobs: list[Job], using: str, deadline: float | None, batched: bool
) -> list[Job]:
    """Returns what the deadline left over.

    Raises:
        _Lost, _Refused: the connection or its channel is of no use any more.
    """
    index = full = 0
    batches = False
    try:
        broker.connect(connection)
    except (*broker.lost_errors, *broker.refused_errors) as exc:
        # Whom the broker does not let in, it refuses no message.
        raise _Lost(jobs) from exc
    try:
        producer = broker.app.amqp.Producer(connection.default_channel, auto_declare=False)
        batches = batched and producer.supports_batch_publish
        with producer.batch(conf().BATCH) if batched else nullcontext():
            for index, job in enumerate(jobs):
                if deadline is not None and time.monotonic() > deadline:
                    return jobs[index:]
                try:
                    send(producer, broker.app, job, using, by_caller=not broker.patient)
                except (*broker.lost_errors, *broker.refused_errors):
                    raise
                except broker.full_errors as exc:
                    # Postponed and not left over: it must not stand at the head of the line for the other queues.
                    full += 1
                    error = lifecycle.error_entry(type(exc).__name__, FULL, attempt=job.lease)
                    lifecycle.postpone(job, FULL_PAUSE, error)
                except Exception as exc:
                    # Not the broker's doing: the row itself, or a queue that this process does not know.
                    _postpone(job, exc, UNBUILT)
            index = len(jobs)
    except broker.lost_errors as exc:
        # Whether the last one left is unknown; a batch is discarded as a whole.
        raise _Lost(jobs if batches else jobs[index:]) from exc
    except broker.refused_errors as exc:
        unsent = jobs if batches else jobs[index:]
        refused = jobs[min(index, len(jobs) - 1)]
        raise _Refused([job for job in unsent if job is not refused], refused, exc) from exc
    finally:
        if full:
            text = "the broker had no room for %s messages; they are tried again in %s s"
            logger.warning(text, full, FULL_PAUSE, extra={"action": "queue_full", "count": full})
    return []


def _postpone(job: Job, exc: Exception, why: str) -> None:
    log(logging.ERROR, job, f"cannot be published: {exc!r}", "publish_failed", exc_info=exc)
    error = lifecycle.error_entry(type(exc).__name__, f"{why}: {exc}", attempt=job.lease)
    lifecycle.postpone(job, UNPUBLISHABLE_PAUSE, error)


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
        logger.exception(
            "publish of %s jobs after the commit failed",
            len(jobs),
            extra={"action": "publish_failed", "count": len(jobs)},
        )


# Connections


def link_errors(kinds: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    """What a lost connection is, and not a mistake of somebody's: with Redis kombu takes any ``KeyError`` for one."""
    return tuple(kind for kind in kinds if not issubclass(kind, LookupError | ValueError | TypeError))


class _Broker:
    """Connections of our own to an app's broker: a request must not wait as long as a worker may."""

    def __init__(self, app: Celery, patient: bool) -> None:
        self.app = app
        self.patient = patient
        settings = conf()
        self.connect_timeout = (
            float(app.conf.broker_connection_timeout) if patient else settings.PUBLISH_CONNECT_TIMEOUT
        )
        answer_timeout = 10.0 if patient else settings.PUBLISH_TIMEOUT
        options = dict(app.conf.broker_transport_options or {})
        self.driver = app.connection_for_write().transport.driver_type
        if self.driver == "redis":
            options |= {"socket_connect_timeout": self.connect_timeout, "socket_timeout": answer_timeout}
            # Retries of the client library would multiply the bound, and they switch batches off.
            for name in ("retry_on_timeout", "retry_on_error", "retry"):
                options.pop(name, None)
        elif self.driver == "amqp":
            options |= {"confirm_publish": True, "read_timeout": answer_timeout, "write_timeout": answer_timeout}
        template = app.connection_for_write(
            connect_timeout=self.connect_timeout, transport_options=options, heartbeat=0
        )
        self.pool = template.Pool(limit=10)
        self.template = template
        #: When connections to another broker than the first of the list go back.
        self.stays_until = 0.0
        self.lost_errors: tuple[type[Exception], ...] = (
            kombu.exceptions.KombuError,
            OSError,
            *link_errors(template.connection_errors),
        )
        self.refused_errors: tuple[type[Exception], ...] = tuple(template.channel_errors)
        #: A publish that was answered with no (RabbitMQ's nack, as of a full queue); its channel is well.
        known = (*self.lost_errors, *self.refused_errors)
        answers = link_errors(template.recoverable_connection_errors)
        self.full_errors = tuple(kind for kind in answers if not issubclass(kind, known))

    def connection(self) -> Any:
        return self.pool.acquire(block=True, timeout=self.connect_timeout)

    def connect(self, connection: kombu.Connection) -> None:
        """Connect once, to the first broker of the list that answers; from another one, go back after a while.

        Workers go back as well: at different brokers, callers and workers would never meet.
        """
        if connection.connected and is_elsewhere(connection) and time.monotonic() > self.stays_until:
            connection.switch(connection.alt[0])
            connection.cycle = connection.failover_strategy(connection.alt)
            next(connection.cycle)
        if not connection.connected:
            tries = max(1, len(connection.alt))
            connection.ensure_connection(max_retries=tries - 1, timeout=tries * self.connect_timeout)
            if is_elsewhere(connection):
                self.stays_until = time.monotonic() + conf().BREAKER

    def abandon(self, connection: kombu.Connection) -> None:
        """Close without waiting: a RabbitMQ that hangs would not answer the goodbye either."""
        if self.driver == "amqp":
            connection.collect()
        else:
            connection.close()


def is_elsewhere(connection: kombu.Connection) -> bool:
    """Whether the connection leads to another broker than the first of its list."""
    if len(connection.alt) < 2:
        return False
    first = kombu.Connection(connection.alt[0])
    return any(getattr(first, name) != getattr(connection, name) for name in ("hostname", "port", "virtual_host"))


_brokers: dict[tuple[Celery, bool], _Broker] = {}
_brokers_lock = threading.Lock()


def _broker(app: Celery, patient: bool) -> _Broker:
    if isinstance(app, Proxy):
        app = app._get_current_object()
    with _brokers_lock:
        if (app, patient) not in _brokers:
            _brokers[app, patient] = _Broker(app, patient)
        return _brokers[app, patient]


def trouble(app: Celery) -> str | None:
    """Why the broker cannot be reached; None if it can. Cheap while a connection is open, which may be dead by now."""
    broker = _broker(app, patient=True)
    try:
        with broker.connection() as connection:
            broker.connect(connection)
            return None
    except (*broker.lost_errors, *broker.refused_errors) as exc:
        return _told(exc)


def trouble_now(app: Celery, first_only: bool = False) -> str | None:
    """As :func:`trouble`, over a new connection, and for no longer than a caller may wait.

    Parameters:
        first_only: ask the first broker of the list, and not those that stand in for it.
    """
    broker = _broker(app, patient=False)
    connection = broker.template.clone()
    urls = 1 if first_only else len(connection.alt) or 1
    try:
        connection.ensure_connection(max_retries=urls - 1, timeout=urls * broker.connect_timeout)
        return None
    except (*broker.lost_errors, *broker.refused_errors) as exc:
        return _told(exc)
    finally:
        broker.abandon(connection)


def _told(exc: Exception) -> str:
    logger.debug("the broker cannot be reached: %r", exc, extra={"action": "broker_down"})
    return f"{type(exc).__name__}: {exc}"


def is_up(app: Celery) -> bool:
    """Whether the broker can be reached; cheap while a connection is open."""
    return trouble(app) is None


def depth(app: Celery, queue: str, patient: bool = True) -> int | None:
    """How many messages wait in the broker's queue; None if the broker does not say."""
    broker = _broker(app, patient)
    try:
        with broker.connection() as connection:
            try:
                broker.connect(connection)
                with connection.channel() as channel:
                    return int(channel.queue_declare(queue=queue, passive=True).message_count)
            except (*broker.lost_errors, *broker.refused_errors):
                broker.abandon(connection)
                raise
    except (*broker.lost_errors, *broker.refused_errors) as exc:
        if str(getattr(exc, "reply_code", None)) == "404" and "home node" not in str(exc):
            return 0  # no such queue: nothing waits in it (and not: "home node of the queue is down")
        logger.warning("the broker does not say how long %r is: %r", queue, exc, extra={"action": "broker_down"})
        return None


def forget_connections() -> None:
    """Close what is open, so that the next publish declares its queues again (the broker may be empty)."""
    with _brokers_lock:
        for broker in _brokers.values():
            broker.pool.force_close_all()
        _brokers.clear()


_inherited: list[Any] = []


def _after_fork() -> None:
    global _brokers, _brokers_lock
    # The parent's sockets: kept, so that no finalizer says a word on them, and never used.
    _inherited.append(_brokers)
    _brokers, _brokers_lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
