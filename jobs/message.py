"""The message of a call, composed at the call by Celery's own functions and stored with the row.

Whoever publishes it later (the caller after its commit, a relay after a retry) sends the same message.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import kombu
import kombu.compression
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601
from django.utils import timezone
from django.utils.translation import gettext
from kombu.common import Broadcast

from jobs import lifecycle, tracing
from jobs.arguments import as_uuid, normalize, storable
from jobs.models import Job, State

if TYPE_CHECKING:
    from celery import Celery

#: The contract between who writes a job and who runs it. A release raises it if older workers would run its jobs
#: wrongly; a worker runs its own version and those before. It is kept with the row and said by the message: the relay
#: of an older release publishes a newer job as what it is.
VERSION = 1

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


def version_of(kept: Mapping[str, Any]) -> Any:
    """The version of a job, out of its options or out of our header in its message."""
    return kept.get("v", 1)


def is_newer(kept: Mapping[str, Any]) -> bool:
    """Whether only the workers of a later release may run the job."""
    version = version_of(kept)
    return not isinstance(version, int) or version > VERSION


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
    expires = options.pop("expires", None)
    expires_at = _moment(app, expires, "expires")
    if app.conf.task_protocol != 2:
        raise ValueError("the setting task_protocol must be 2, Celery's default: jobs keep no older message")
    if compression := options.get("compression") or app.conf.task_compression:
        kombu.compression.get_encoder(compression)
    _check_known(app, options)
    retries = options.pop("retries", 0)
    ignore_result = options.pop("ignore_result", None)
    options = app.amqp.router.route(
        options,
        options.pop("route_name", None) or task.name,
        args,
        kwargs,
        task,
    )
    _check_known(app, options)
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
        with tracing.apart():
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
    stored = storable(
        {
            "v": VERSION,
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
        headers=storable(headers, "headers"),
        queue=_queue_name(queue, declare, how),
        priority=priority,
        # Like a countdown, seconds are meant from now on by the database's clock: this machine's may be wrong.
        expires_at=lifecycle.now_plus(expires) if isinstance(expires, int | float) else expires_at,
        retries=retries,
        parent_id=as_uuid(parent_id),
        root_id=as_uuid(root_id) or uuid.UUID(task_id),
        state=State.READY if run_at is None else State.SCHEDULED,
    )
    if run_at is not None:
        job.run_at = run_at
    tracing.create(job, options.get("headers"), parent)
    return job


def _check_serializer(name: str) -> None:
    if name not in ("json", "application/json"):
        raise ValueError(f"serializer={name!r} cannot be kept: a job's arguments are JSON; remove the option")


def _run_at(app: Celery, eta: Any, countdown: Any) -> Any:
    """None for now; an expression on the database's clock for a countdown, which wins; the moment itself for an eta."""
    if countdown:
        seconds = float(countdown)
        return lifecycle.now_plus(seconds) if seconds > 0 else None
    moment = _moment(app, eta, "eta") if eta else None
    return None if moment is None or moment <= timezone.now() else moment


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


def _check_known(app: Celery, options: Mapping[str, Any]) -> None:
    """A kombu entity is stored by its name, so the app of whoever publishes later has to know it."""
    for name in ("queue", "exchange"):
        value = options.get(name)
        if isinstance(value, Broadcast):
            raise ValueError(
                f"{name}={value!r} cannot be kept: a job is run once, and not by every worker; "
                "leave the task to Celery with JOBS['EXCLUDE']"
            )
        if isinstance(value, kombu.Queue) and value.name not in app.amqp.queues:
            raise ValueError(f"queue={value!r} cannot be kept: add it to the setting task_queues, then pass its name")
        if isinstance(value, kombu.Exchange) and all(
            queue.exchange.name != value.name for queue in app.amqp.queues.values()
        ):
            raise ValueError(f"exchange={value!r} cannot be kept: use it in a queue of the setting task_queues")
    for entity in options.get("declare") or ():
        if not isinstance(entity, kombu.Queue) or entity.name not in app.amqp.queues:
            raise ValueError(f"declare={entity!r} cannot be kept: name a queue of the setting task_queues")


def rerouted(app: Celery, job: Job, queue: str) -> dict[str, Any]:
    """The job's options with its message going to another queue, as Celery's ``send_task_message`` sends it there.

    Raises:
        ValueError: the app knows no such queue, and may make none (``task_create_missing_queues``).
    """
    try:
        entity = app.amqp.queues[queue]
    except KeyError:
        says = gettext("the app knows no queue %(queue)r; known are: %(known)s")
        raise ValueError(says % {"queue": queue, "known": ", ".join(sorted(app.amqp.queues))}) from None
    if isinstance(entity, Broadcast):
        says = gettext("%(queue)r is a broadcast: each of its workers would be handed the job")
        raise ValueError(says % {"queue": queue})
    if entity.exchange.type in (None, "direct"):
        address = {"exchange": "", "routing_key": entity.name}
    else:
        address = {"exchange": entity.exchange.name, "routing_key": entity.routing_key}
    return {**job.options, "publish": {**job.options["publish"], **address}, "declare": [entity.name]}


def _queue_name(queue: Any, declare: Sequence[Any], how: Mapping[str, Any]) -> str:
    name = getattr(queue, "name", queue) or next((entity.name for entity in declare), None) or how.get("routing_key")
    return str(name or "")
