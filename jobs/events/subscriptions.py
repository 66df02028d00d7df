"""Who handles which events: what the code says, and the rows by which all services of a database know it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from celery import Celery
from django.db import transaction
from django.db.models import Q

from jobs.calling.calls import rank_of
from jobs.conf.logs import logger
from jobs.events.outbox import service
from jobs.lifecycle.transitions import now_plus
from jobs.models import Node, Subscription

#: Seconds for which a worker may be away, until events are lost to handlers that only it knows.
GRACE = 3600.0

#: What of a subscription may change with a deploy.
_CHANGES = ("pattern", "version", "queue", "rank", "is_ordered", "keep_failed")


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    words = {"*": r"\.[^.]+", "#": r"(\.[^.]+)*"}
    return re.compile("".join(words.get(word, r"\." + re.escape(word)) for word in pattern.split(".")))


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern (``shop.order.*``, ``shop.#``) names the event, as RabbitMQ's topic exchanges do."""
    return pattern == name or _matcher(pattern).fullmatch(f".{name}") is not None


def declared(app: Celery) -> list[Subscription]:
    """What the handlers of this code subscribe to, unsaved."""
    found = []
    for name, task in sorted(app.tasks.items()):
        if (subscribes := getattr(task, "subscribes", None)) is None or task.is_stock():
            continue
        route = app.amqp.router.route({}, name, (), {}, task)
        queue: Any = getattr(task, "queue", None) or route.get("queue")
        found.append(
            Subscription(
                service=service(),
                handler=name,
                pattern=subscribes.pattern,
                version=subscribes.version,
                queue=str(getattr(queue, "name", queue) or app.conf.task_default_queue),
                rank=rank_of(app, getattr(task, "priority", None)),
                is_ordered=subscribes.is_ordered,
                keep_failed=subscribes.keep_failed,
            )
        )
    return found


def register(app: Celery, using: str) -> None:
    """Write what this code subscribes to, and say what is new."""
    mine = declared(app)
    if not mine:
        return
    with transaction.atomic(using=using):
        rows = Subscription.objects.using(using)
        known = {row.handler: row for row in rows.select_for_update().filter(service=service())}
        for each in mine:
            row = known.get(each.handler)
            if row is None:
                rows.bulk_create([each], ignore_conflicts=True)
            elif any(getattr(row, name) != getattr(each, name) for name in _CHANGES):
                rows.filter(pk=row.pk).update(**{name: getattr(each, name) for name in _CHANGES})
            else:
                continue
            logger.info("%s handles %s from now on", each.handler, each.pattern, extra={"action": "subscribed"})


def forget_gone(using: str) -> None:
    """Delete the subscriptions of handlers that no worker knows which is alive, or was within the last :data:`GRACE`.

    Race: a worker that starts writes its node before its subscriptions, so they are read in the other order.
    """
    rows = list(Subscription.objects.using(using).filter(service=service()))
    nodes = Node.objects.using(using).filter(Q(dead_at=None) | Q(dead_at__gt=now_plus(-GRACE)))
    known = {name for tasks in nodes.values_list("tasks", flat=True) for name in tasks}
    gone = [row for row in rows if row.handler not in known]
    if len(gone) == len(rows):
        # No worker of this service is there to say.
        return
    for row in gone:
        row.delete(using=using)
        logger.info("%s handles %s no longer", row.handler, row.pattern, extra={"action": "unsubscribed"})


def wanted(subscriptions: Iterable[Subscription], name: str, version: int) -> list[Subscription]:
    """Those that handle this version of an event."""
    return [each for each in subscriptions if each.version in (None, version) and matches(each.pattern, name)]
