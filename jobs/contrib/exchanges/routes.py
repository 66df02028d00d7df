"""From an exchange and a routing key to a queue; what no queue gets is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import kombu
from celery import Celery
from kombu.common import Broadcast
from kombu.transport.virtual.exchange import TopicExchange

from jobs.calling import calls


def queue_name(app: Celery, options: Mapping[str, Any], kept: dict[str, Any], is_given: bool) -> str:
    """The given queue, else the one that the exchange leads to, else what the core says."""
    queue, exchange, routing_key = options.get("queue"), options.get("exchange"), options.get("routing_key")
    if isinstance(queue, Broadcast) or isinstance(exchange, Broadcast):
        raise ValueError(
            f"queue={queue!r} cannot be kept: a job is run once, and not by every worker; "
            "leave the task to Celery with JOBS['EXCLUDE']"
        )
    if isinstance(queue, kombu.Queue) and queue.name not in app.amqp.queues:
        raise ValueError(f"queue={queue!r} cannot be kept: add it to the setting task_queues, then pass its name")
    name = getattr(exchange, "name", exchange) or ""
    if name and (bound := bound_queue(app, name, routing_key)) is not None:
        kept |= {"exchange": name, "routing_key": routing_key or bound.routing_key}
        return str(bound.name)
    if name and not is_given:
        raise ValueError(
            f"exchange={name!r}, routing_key={routing_key!r} cannot be kept: no queue of the setting task_queues is "
            "bound so; pass queue="
        )
    if not name and isinstance(queue, kombu.Queue) and queue.exchange.type != "direct":
        kept |= {"exchange": queue.exchange.name, "routing_key": routing_key or queue.routing_key}
    return calls.queue_name(app, options, kept, is_given)


def bound_queue(app: Celery, exchange: str, routing_key: str | None) -> kombu.Queue | None:
    """The app's queue that gets what is sent to the exchange with this routing key."""
    for queue in app.amqp.queues.values():
        if queue.exchange.name != exchange:
            continue
        if routing_key is None or routing_key == queue.routing_key:
            return queue
        if queue.exchange.type == "topic":
            pattern = TopicExchange.key_to_pattern(TopicExchange, queue.routing_key)
            if re.match(pattern, routing_key):
                return queue
    return None
