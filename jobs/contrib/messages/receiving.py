"""A message: from ``send_task`` by name, ``celery call``, another service, or a producer from before the switch."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from celery.exceptions import Ignore, Reject
from celery.utils.time import maybe_iso8601
from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, Error, IntegrityError, transaction
from django.utils import timezone

from jobs import extensions, store
from jobs.calling.calls import rank_of
from jobs.conf import celery_app, conf
from jobs.conf.logs import log, logger
from jobs.conf.syncpoints import reach
from jobs.execution import finish
from jobs.lifecycle.run import RECONNECT
from jobs.lifecycle.wakeups import wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.models.fields import uuid7
from jobs.models.values import as_uuid, normalize, scrub, storable
from jobs.store import databases


def receive(task: Any, context: Any, args: Any, kwargs: Any) -> Any:
    """A message that no ``delay()`` of ours made gets its row, and is acknowledged after that."""
    error: Exception
    for pause in RECONNECT:
        time.sleep(pause)
        try:
            insert(task.name, context, args, kwargs)
        except Exception as exc:
            finish.let_end(exc)
            is_plain = not task.key_templates and not task.is_fenced
            if isinstance(exc, TypeError | ValueError | DataError | IntegrityError) and is_plain:
                text = (
                    "was sent by name and not by delay(), and cannot be kept as a job; it runs as a stock Celery task"
                )
                extra = worker_state.about("foreign", job=str(context.id), task=task.name)
                logger.warning("%s[%s] %s: %s", task.name, context.id, text, exc, extra=extra)
                break
            if not isinstance(exc, Error) or isinstance(exc, DataError | IntegrityError):
                # Without a row it would run without the marker, the lock and the waits that it needs.
                raise
            # Also a server that takes no writes, or a table that is not migrated yet: the next attempt may succeed.
            error = exc
            databases.drop(databases.job_alias())
        else:
            raise Ignore("it is a job now")
    else:
        # The database is away, and nothing but the message knows of this job: it goes back to the broker.
        raise Reject(str(error), requeue=True)
    context.jobs_run = False
    return (task.own_call or task.run)(*args, **kwargs)


def insert(task: str, request: Any, args: Any, kwargs: Any) -> None:
    """Insert the row of a message, unless it is there. It is a job then. Race: one of several copies inserts.

    Raises:
        TypeError, ValueError: its contents cannot be kept as JSON.
        django.db.Error: no database; either nothing or the whole row was written.
    """
    plain_args, plain_kwargs = normalize(args, kwargs, conf().MAX_ARGS_BYTES)
    app, delivery = celery_app(), request.delivery_info or {}
    key, root, priority = as_uuid(request.id) or uuid7(), as_uuid(request.root_id), delivery.get("priority")
    priority = within(priority, -(2**15))
    expires_at = maybe_iso8601(request.expires)
    if expires_at is not None and timezone.is_naive(expires_at):
        # As Celery reads it.
        expires_at = expires_at.replace(tzinfo=datetime.UTC)
    job = Job(
        id=key,
        task=_text(task),
        args=plain_args,
        kwargs=plain_kwargs,
        options=storable(_stated(request, delivery), "the options"),
        queue=_text(_arrived_by(app, delivery)),
        priority=priority,
        rank=rank_of(app, priority) if priority and app is not None else 0,
        expires_at=expires_at,
        retries=within(request.retries, 0) or 0,
        parent_id=as_uuid(request.parent_id),
        root=None if root == key else root,
        made_at=timezone.now(),
    )
    mark(app, job)
    reach("before_receive")
    using = databases.job_alias()
    with transaction.atomic(using=using) if store.of(using).is_divided else nullcontext():
        Job.objects.using(using).bulk_create([job], ignore_conflicts=True)
        store.of(using).withdraw(key)
    reach("after_receive")
    wakeup.send()


def _stated(request: Any, delivery: Mapping[str, Any]) -> dict[str, Any]:
    """``Job.options`` of a message."""
    own = "chain chord group_index shadow reply_to replaced_task_nesting stamped_headers stamps ignore_result".split()
    given = {name: getattr(request, name) for name in own}
    given |= {"link": request.callbacks, "link_error": request.errbacks, "group_id": request.group}
    given |= zip(("time_limit", "soft_time_limit"), request.timelimit or (), strict=False)
    given["headers"] = {name: value for name, value in (request.headers or {}).items() if name != "timelimit"}
    if request.id and str(as_uuid(request.id)) != str(request.id):
        # The sender asks for the result under this spelling.
        given["task_id"] = scrub(str(request.id))
    if delivery.get("exchange"):
        given |= {"exchange": delivery["exchange"], "routing_key": delivery.get("routing_key")}
    # These are kept even if they are 0 or False.
    stated = ("group_index", "ignore_result")
    return {name: value for name, value in given.items() if value or (name in stated and value is not None)}


def _arrived_by(app: Any, delivery: Mapping[str, Any]) -> Any:
    """The queue that a message came from; the message only names the exchange and routing key it was sent to."""
    exchange, routing_key = delivery.get("exchange"), delivery.get("routing_key")
    for look in extensions.through("bound") if app is not None and exchange else ():
        if (bound := look(app, str(exchange), routing_key)) is not None:
            return bound.name
    # The default exchange routes by the queue's name. With a foreign binding, the worker that got the message runs it.
    consumed = worker_state.queues
    return consumed[0] if exchange and consumed and routing_key not in consumed else routing_key


def within(value: Any, least: int) -> int | None:
    """The number, limited to what the column can hold; another service may send anything."""
    return None if value is None else max(least, min(int(value), 2**15 - 1))


def _text(value: Any) -> str:
    return scrub(str(value or ""))[:255] or "?"


def mark(app: Any, job: Job) -> None:
    """Write what extensions add to a call into a row that was made without one: of a message, or of an event."""
    task = app.tasks.get(job.task) if app is not None else None
    for called in getattr(task, "call_hooks", ()):
        try:
            called(task, job)
        except ImproperlyConfigured:
            # Arguments that should be hidden, and cannot be, are not kept.
            raise
        except Exception as exc:
            # If the arguments do not fit the task, the run will report it.
            log(logging.DEBUG, job, f"it gets less than a call: {exc!r}", "hook_failed")
