"""What a call says becomes a row. What a body sees is made again from the row (``jobs.request``)."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import kombu
from celery import signals
from celery.backends.rpc import RPCBackend
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601
from django.utils import timezone
from django.utils.translation import gettext
from kombu.common import Broadcast
from kombu.transport.virtual.exchange import TopicExchange

from jobs import lifecycle, tracing
from jobs.arguments import as_uuid, normalize, storable
from jobs.fields import uuid7
from jobs.models import Job, State

if TYPE_CHECKING:
    from celery import Celery

#: The contract between who writes a job and who runs it. A release raises it if older workers would run its jobs
#: wrongly; a worker runs its own version and those before. A row without one is of version 1.
VERSION = 1

#: Accepted by ``apply_async`` because groups and beat pass them, and not kept: a job does not travel.
PLUMBING = frozenset(
    (
        "producer connection publisher router add_to_parent result_cls retry retry_policy timeout "
        "confirm_timeout task_type event_dispatcher delivery_mode compression immediate mandatory declare "
        "exchange_type origin"
    ).split()
)

#: What ``Job.options`` keeps of a call, under the names of ``apply_async``, as it was given.
KEPT = "task_id chain chord group_id group_index shadow replaced_task_nesting stamped_headers reply_to".split()

#: The largest number of seconds that a call may be put off or may last: longer is a mistake (milliseconds?).
LONGEST = 10 * 366 * 86400.0


def is_newer(options: Mapping[str, Any]) -> bool:
    """Whether only the workers of a later release may run the job."""
    version = options.get("v", 1)
    return not isinstance(version, int) or version > VERSION


def compose(app: Celery, task: Any, task_id: uuid.UUID | None, args: Any, kwargs: Any, options: dict[str, Any]) -> Job:
    """Build the unsaved row of a call.

    Routers and the receivers of ``before_task_publish`` run here, in the caller's context.

    Parameters:
        task_id: the id that the caller wants; None for a new one.
        options: what ``apply_async`` was given, merged with the task's own execution options; ``countdown``
            and ``eta`` are in seconds and an aware datetime.

    Raises:
        TypeError, ValueError: an argument or an option that cannot be kept; names it, and the cure.
    """
    plain_args, plain_kwargs = normalize(args, kwargs)
    _check_serializer(options.pop("serializer", None) or app.conf.task_serializer)
    for name in PLUMBING & options.keys():
        del options[name]
    eta, countdown = options.pop("eta", None), options.pop("countdown", None)
    run_at = _run_at(app, eta, countdown) if eta or countdown else None
    expires = options.pop("expires", None)
    is_queue_given = options.get("queue") is not None
    options = _routed(app, options, task, args, kwargs)
    root_id, parent_id = options.pop("root_id", None), options.pop("parent_id", None)
    parent = app.current_worker_task
    if parent:
        root_id = root_id or parent.request.root_id or parent.request.id
        parent_id = parent_id or parent.request.id
        if app.conf.task_inherit_parent_priority:
            options.setdefault("priority", (parent.request.delivery_info or {}).get("priority"))
    key = task_id or uuid7()
    kept = _kept(task, options)
    if VERSION > 1:
        kept["v"] = VERSION
    if isinstance(app.backend, RPCBackend):
        kept.setdefault("reply_to", app.thread_oid)
    if run_at is not None:
        kept["eta"] = True
    priority = options.get("priority")
    job = Job.of(
        {
            "id": key,
            "task": task.name,
            "args": plain_args,
            "kwargs": plain_kwargs,
            "queue": _queue_name(app, options, kept, is_queue_given),
            "priority": priority,
            "rank": rank_of(app, priority),
            "retries": options.get("retries") or 0,
            "parent_id": as_uuid(parent_id),
            "root": as_uuid(root_id),
        }
    )
    if job.root == key:
        job.root = None
    if task_id is not None and task_id.version != 7:
        job.made_at = timezone.now()
    if run_at is not None:
        job.state, job.run_at = State.SCHEDULED, run_at
    if expires is not None:
        # Like a countdown, seconds are meant from now on by the database's clock: this machine's may be wrong.
        is_span = isinstance(expires, int | float)
        job.expires_at = lifecycle.now_plus(_span(expires, "expires")) if is_span else _moment(app, expires, "expires")
    if kept or options.get("headers") or signals.before_task_publish.receivers:
        _keep(app, job, kept, options)
    tracing.create(job, options.get("headers"), parent)
    return job


def _routed(app: Celery, options: dict[str, Any], task: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    name = options.pop("route_name", None) or task.name
    router = app.amqp.router
    if not router.routes and not options.get("queue") and not options.get("exchange"):
        # What Celery's router comes to, without its look at the settings.
        options["queue"] = app.amqp.default_queue
        return options
    routed: dict[str, Any] = router.route(options, name, args, kwargs, task)
    return routed


def _kept(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the call said and the task does not say itself."""
    kept = {name: options[name] for name in KEPT if options.get(name) not in (None, [], "")}
    if not kept.get("replaced_task_nesting"):
        kept.pop("replaced_task_nesting", None)
    for name in ("link", "link_error"):
        if given := maybe_list(options.get(name)):
            kept[name] = given
    for name in ("time_limit", "soft_time_limit", "ignore_result"):
        if name in options and options[name] != getattr(task, name):
            kept[name] = options[name]
    if "stamped_headers" in kept:
        kept["stamps"] = {name: options[name] for name in kept["stamped_headers"] if name in options}
    return kept


def _keep(app: Celery, job: Job, kept: dict[str, Any], options: Mapping[str, Any]) -> None:
    if headers := _headers(app, job, kept, options):
        kept["headers"] = headers
    job.options = storable(kept, "the options")


def _headers(app: Celery, job: Job, kept: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's own headers, and what receivers of ``before_task_publish`` add to those of Celery."""
    given = dict(options.get("headers") or {})
    if not signals.before_task_publish.receivers:
        return given
    from jobs import request

    made = request.headers_of(job, app, kept)
    headers = {**made, **given}
    exchange, routing_key = kept.get("exchange", ""), kept.get("routing_key", job.queue)
    properties = {"correlation_id": job.task_id, "reply_to": kept.get("reply_to", ""), "priority": job.priority}
    with tracing.apart():
        signals.before_task_publish.send(
            sender=job.task,
            body=(job.args, job.kwargs, request.embedded(kept)),
            exchange=exchange,
            routing_key=routing_key,
            declare=[],
            headers=headers,
            properties=properties,
            retry_policy=dict(app.conf.task_publish_retry_policy),
        )
    return {name: value for name, value in headers.items() if name not in made or made[name] != value}


def rank_of(app: Celery, priority: int | None) -> int:
    """The priority as the claim sorts it, the smallest first.

    Celery's priorities mean 9 first on RabbitMQ and 0 first on Redis; ``jobs://`` follows Redis.
    """
    if not priority:
        return 0
    url = app.conf.broker_write_url or app.conf.broker_url or ""
    first = str(url if isinstance(url, str) else url[0])
    return -priority if first.startswith(("amqp", "pyamqp")) else priority


def _check_serializer(name: str) -> None:
    if name not in ("json", "application/json"):
        raise ValueError(f"serializer={name!r} cannot be kept: a job's arguments are JSON; remove the option")


def _span(seconds: Any, name: str) -> float:
    if not -LONGEST <= seconds <= LONGEST:
        raise ValueError(f"{name}={seconds!r} is more than ten years of seconds: pass seconds, not milliseconds")
    return float(seconds)


def _run_at(app: Celery, eta: Any, countdown: Any) -> Any:
    """None for now; an expression on the database's clock for a countdown, which wins; the moment itself for an eta."""
    if countdown:
        seconds = _span(float(countdown), "countdown")
        return lifecycle.now_plus(seconds) if seconds > 0 else None
    moment = _moment(app, eta, "eta") if eta else None
    return None if moment is None or moment <= timezone.now() else moment


def _moment(app: Celery, value: Any, name: str) -> datetime.datetime:
    if isinstance(value, int | float):
        return timezone.now() + datetime.timedelta(seconds=_span(value, name))
    if isinstance(value, str):
        value = maybe_iso8601(value)
    if isinstance(value, datetime.datetime):
        return value if timezone.is_aware(value) else value.replace(tzinfo=app.timezone)
    raise TypeError(f"{name} must be a datetime or a number of seconds, not {type(value).__name__}")


def _queue_name(app: Celery, options: Mapping[str, Any], kept: dict[str, Any], is_given: bool) -> str:
    """The queue that a call goes to, by its name.

    Parameters:
        is_given: the caller named the queue; else it is the route's, or the default one.

    Raises:
        ValueError: no queue of the app gets it, or each of its consumers would.
    """
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
    return str(getattr(queue, "name", queue) or routing_key or app.conf.task_default_queue)


def bound_queue(app: Celery, exchange: str, routing_key: str | None) -> kombu.Queue | None:
    """The queue of the app that gets what is sent to the exchange."""
    bound = (each for each in app.amqp.queues.values() if each.exchange.name == exchange)
    return next((each for each in bound if _is_bound(each, routing_key)), None)


def _is_bound(queue: kombu.Queue, routing_key: str | None) -> bool:
    if routing_key is None or routing_key == queue.routing_key:
        return True
    if queue.exchange.type != "topic":
        return False
    return re.match(TopicExchange.key_to_pattern(TopicExchange, queue.routing_key), routing_key) is not None


def known_queue(app: Celery, queue: str) -> str:
    """The name, if the app knows a queue that jobs can wait in.

    Raises:
        ValueError: it knows none, and may make none (``task_create_missing_queues``).
    """
    try:
        entity = app.amqp.queues[queue]
    except KeyError:
        says = gettext("the app knows no queue %(queue)r; known are: %(known)s")
        raise ValueError(says % {"queue": queue, "known": ", ".join(sorted(app.amqp.queues))}) from None
    if isinstance(entity, Broadcast):
        raise ValueError(gettext("%(queue)r is a broadcast: each of its workers would run the job") % {"queue": queue})
    return queue
