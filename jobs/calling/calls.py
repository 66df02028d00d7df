"""How a call becomes a row.

``jobs.calling.request`` makes what a body sees from the row.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import kombu
from celery import Celery
from celery.backends.rpc import RPCBackend
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601
from django.utils import timezone

from jobs import extensions
from jobs.calling import outbox
from jobs.conf import conf
from jobs.errors import LONGEST
from jobs.lifecycle import transitions
from jobs.models import Job, State
from jobs.models.columns import OPTIONS
from jobs.models.fields import uuid7
from jobs.models.values import as_uuid, normalize, plain, storable

#: The contract between the caller that writes a job and the worker that runs it. A release raises it if older workers
#: would run its jobs wrongly. A worker runs its own version and earlier ones. A row without a version has version 1.
VERSION = 1

#: What ``Job.options`` keeps of a call, as it was given, under the names of ``apply_async``.
KEPT = (
    "chain chord group_id group_index shadow replaced_task_nesting stamped_headers reply_to argsrepr kwargsrepr"
).split()
#: In words, what an ``eta`` or ``expires`` may be.
MOMENT = "a datetime, a number of seconds from now, or text such as '2026-11-21T14:30:00Z'"


def check_declaration(task: type[Any], declared: Collection[str]) -> None:
    """Refuse options of a task that cannot work. An extension knows which do.

    Parameters:
        declared: the names in the body of the task's class, if a decorator made it.
    """


def check_call(options: Mapping[str, Any]) -> None:
    """Refuse options of a call that cannot work. An extension knows which do."""


def is_newer(options: Mapping[str, Any]) -> bool:
    """Whether only workers of a later release may run the job."""
    version = options.get("v", 1)
    return not isinstance(version, int) or version > VERSION


class Terms(NamedTuple):
    """What a call sets besides its arguments: many calls may share it."""

    #: The columns of its row.
    row: dict[str, Any]
    #: ``Job.options`` as they were given; signatures in them are not JSON yet.
    kept: dict[str, Any]
    #: The caller's own headers.
    headers: Mapping[str, Any] | None
    #: The task whose run makes the call.
    parent: Any


def terms(task: Any, args: Any, kwargs: Any, given: Mapping[str, Any]) -> Terms:
    """Read the options of a call; the project's routers run here.

    Parameters:
        args, kwargs: for the routers.
        given: what ``apply_async`` was given; for everything else the task's own options hold.

    Raises:
        TypeError, ValueError: an option that cannot be kept; names it, and the cure.
    """
    if task.soft_time_limit and task.time_limit and task.soft_time_limit > task.time_limit:
        raise ValueError("soft_time_limit must be less than or equal to time_limit")
    app = task._get_app()
    options = {**task._get_exec_options(), "ignore_result": task.ignore_result, **given}
    task_id = options.pop("task_id", None)
    try:
        key = uuid.UUID(str(task_id)) if task_id else None
    except ValueError:
        raise ValueError(f"task_id={task_id!r} is no UUID: leave it out, or pass str(uuid.uuid4())") from None
    serializer = options.pop("serializer", None) or app.conf.task_serializer
    if serializer not in ("json", "application/json"):
        raise ValueError(f"serializer={serializer!r} cannot be kept: a job's arguments are JSON; remove the option")
    countdown, eta, expires = (options.pop(name, None) for name in ("countdown", "eta", "expires"))
    run_at = _run_at(app, countdown, eta) if countdown or eta else None
    is_queue_given = options.get("queue") is not None
    route_name = options.pop("route_name", None) or task.name
    if app.amqp.router.routes or options.get("queue") or options.get("exchange"):
        options = app.amqp.router.route(options, route_name, args, kwargs, task)
    else:
        # Celery's router would return the same, but would read the settings first.
        options["queue"] = app.amqp.default_queue
    root_id, parent_id = options.pop("root_id", None), options.pop("parent_id", None)
    parent = app.current_worker_task
    if parent:
        root_id = root_id or parent.request.root_id or parent.request.id
        parent_id = parent_id or parent.request.id
        if app.conf.task_inherit_parent_priority and options.get("priority") is None:
            options["priority"] = (parent.request.delivery_info or {}).get("priority")
    # ``freeze()`` sets both.
    is_frozen = bool(task_id and options.get("reply_to"))
    # What the call set and the task itself does not.
    kept = {name: value for name in KEPT if (value := options.get(name)) or (value == 0 and name == "group_index")}
    for name in ("link", "link_error"):
        if each := maybe_list(options.get(name)):
            kept[name] = each
    for name in ("time_limit", "soft_time_limit", "ignore_result"):
        if name in options and options[name] != getattr(task, name):
            kept[name] = options[name]
    if "stamped_headers" in kept:
        kept["stamps"] = {name: options[name] for name in kept["stamped_headers"] if name in options}
    if VERSION > 1:
        kept["v"] = VERSION
    if isinstance(app.backend, RPCBackend):
        kept.setdefault("reply_to", app.thread_oid)
    if task_id and str(key) != str(task_id):
        # Such as uuid4().hex: the caller asks for the result under this spelling.
        kept["task_id"] = str(task_id)
    if run_at is not None:
        kept["eta"] = True
    root, priority = as_uuid(root_id) if root_id else None, options.get("priority")
    if priority is not None and (priority != int(priority) or not -(2**15) <= priority < 2**15):
        raise ValueError(f"priority={priority} must be from {-(2**15)} to {2**15 - 1}")
    priority = None if priority is None else int(priority)
    row = {
        "id": key,
        "task": task.name,
        "queue": extensions.instead(queue_name)(app, options, kept, is_queue_given),
        "priority": priority,
        "rank": rank_of(app, priority) if priority else 0,
        "retries": options.get("retries") or 0,
        "parent_id": as_uuid(parent_id) if parent_id else None,
        "root": None if root == key else root,
    }
    row |= {name: options[name] for name in OPTIONS if options.get(name)}
    if key is not None:
        # The id alone, even a UUIDv7, does not distinguish this call from an earlier one.
        row |= {"is_given": True, "is_frozen": is_frozen, "made_at": timezone.now()}
    if run_at is not None:
        row |= {"state": State.SCHEDULED, "run_at": run_at}
    if expires is not None:
        row["expires_at"] = _moment(app, expires, "expires")
    if kept:
        row["options"] = storable(kept, "the options")
    return Terms(row, kept, options.get("headers"), parent)


def compose(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any], said: Terms | None = None) -> Job:
    """The unsaved row of a call, made in the caller's context.

    Parameters:
        said: the options, if they were read before, for this call and others.

    Raises ``TypeError``, ``ValueError``: a value cannot be kept, or a header that a receiver added.
    """
    if task.declared_wrong is not None:
        raise task.declared_wrong
    # The checks and merges of celery.Task.apply_async, then ours.
    if task.typing and (check_arguments := getattr(task, "__header__", None)) is not None:
        check_arguments(*(args or ()), **(kwargs or {}))
    if said is None:
        options = {**options, "shadow": options.get("shadow") or task.shadow_name(args, kwargs, options)}
    if task.argument_dumper is not None:
        args, kwargs = task.argument_dumper(args, kwargs)
    # The follow-ups of a job are written with its end, however long its result is.
    most = conf().MAX_ARGS_BYTES if outbox.following.get() is None else None
    plain_args, plain_kwargs = normalize(args, kwargs, most)
    row, kept, headers, parent = said or terms(task, args, kwargs, options)
    job_options = dict(row["options"]) if kept else {}
    given = {"id": row["id"] or uuid7(), "args": plain_args, "kwargs": plain_kwargs, "options": job_options}
    job = Job.of({**row, **given})
    if sent := extensions.instead(sent_headers)(job, headers or {}, task._get_app()):
        job_options["headers"] = storable(dict(sent), "the options")
    for composed in extensions.through("composed"):
        composed(job, headers, parent)
    if task.key_templates:
        job.marker_key, job.unique_key = task.key_of("idempotency_key", job), task.key_of("unique", job)
        if job.unique_key is not None:
            job.unique_until = task.unique_until
            job.unique_expires_at = None if task.unique_for is None else transitions.now_plus(task.unique_for)
    for called in task.call_hooks:
        called(task, job)
    return job


def sent_headers(job: Job, given: Mapping[str, Any], app: Celery) -> Mapping[str, Any]:
    """The caller's own headers. An extension adds those of other libraries."""
    return given


def rank_of(app: Celery, priority: int) -> int:
    """The priority as the claim sorts it. In Celery 9 is first on RabbitMQ, and 0 is first on Redis and ``jobs://``."""
    url = app.conf.broker_write_url or app.conf.broker_url or ""
    first = str(url if isinstance(url, str) else url[0])
    return -priority if first.startswith(("amqp", "pyamqp")) else priority


def _run_at(app: Celery, countdown: Any, eta: Any) -> Any:
    """When the job is to run; a countdown wins over an eta. None: at once."""
    name, value = ("countdown", countdown) if countdown else ("eta", eta)
    moment = _moment(app, value, name)
    is_past = moment <= timezone.now() if isinstance(moment, datetime.datetime) else value < 0
    return None if is_past else moment


def _moment(app: Celery, value: Any, name: str) -> Any:
    """Seconds become an expression that adds them to the database's clock: this machine's clock may be wrong."""
    if isinstance(value, int | float):
        if not -LONGEST <= value <= LONGEST:
            raise ValueError(f"{name}={value!r} is more than ten years of seconds: pass seconds, not milliseconds")
        return transitions.now_plus(float(value))
    if isinstance(value, str):
        with suppress(ValueError):
            value = maybe_iso8601(value) or value
        if isinstance(value, str):
            raise ValueError(f"{name}={value!r} must be {MOMENT}")
    value = value if timezone.is_aware(value) else value.replace(tzinfo=app.timezone)
    if value.year < 2 or value >= transitions.NEVER:
        # Python cannot show it in every time zone, or it means that the job waits for something else.
        raise ValueError(f"{name}={value!r} must be of the years 2 to 8999; for a job without it leave it out")
    return value


def name_of(queue: kombu.Queue | str | None) -> str:
    return plain(queue.name if isinstance(queue, kombu.Queue) else queue) if queue else ""


def queue_name(app: Celery, options: Mapping[str, Any], kept: dict[str, Any], is_given: bool) -> str:
    """The name of the queue that a call goes to: the given one, else the route's, else the default.

    Parameters:
        kept: what the row keeps of the call. An extension adds how the call was routed.
        is_given: the caller named the queue.
    """
    queue = options.get("queue")
    given = queue.name if isinstance(queue, kombu.Queue) else queue
    # As name_of(), without its two calls: each delay() comes here.
    chosen = str(getattr(given, "value", given) or options.get("routing_key") or app.conf.task_default_queue)
    if len(chosen) > 255 or "\0" in chosen:
        raise ValueError(f"queue={chosen[:40]!r} must be a name of at most 255 characters, none of them NUL")
    return chosen
