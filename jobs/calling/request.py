"""The request that a body sees: as Celery would have made it from a message, but made from the row."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.utils.nodenames import anon_nodename
from celery.utils.saferepr import saferepr

from jobs import extensions
from jobs.lifecycle.run import Run, current
from jobs.models import Job
from jobs.models.values import decoded

#: Headers that bear the arguments, as texts.
TEXTS = ("argsrepr", "kwargsrepr")
#: The follow-ups of a task: their names in a request, and in a call.
_EMBEDDED = {"callbacks": "link", "errbacks": "link_error", "chain": "chain", "chord": "chord"}


def make(job: Job, task: Any, app: Celery, hostname: str, run: Run | None = None) -> Context:
    """The request of a claimed job, as Celery's tracer makes it from a message. Its run may read all arguments.

    It differs from a message's request: it has no delivery tag, ``redelivered`` says that an earlier run was given
    back, and ``retries``, ``eta`` and ``expires`` come from the row.
    """
    options = job.options
    headers = headers_of(job, app, options, task)
    own, reply_to, priority = options.get("headers"), options.get("reply_to", ""), job.priority or 0
    own = decoded(own) if own else {}
    # A run may read what only it may see.
    before = current.set(run or current.get())
    try:
        contents = given(job)
    finally:
        current.reset(before)
    made: dict[str, Any] = {
        **headers,
        **own,
        "properties": {"correlation_id": headers["id"], "reply_to": reply_to, "priority": priority},
        "reply_to": reply_to,
        "correlation_id": headers["id"],
        "hostname": hostname,
        "delivery_info": {
            "exchange": options.get("exchange", ""),
            "routing_key": options.get("routing_key", job.queue),
            "priority": priority,
            "redelivered": job.lease > 1 + job.retries + job.snoozes,
        },
        "is_eager": False,
        "called_directly": False,
        **contents,
    }
    if own and extensions.instead(seen)(job) is not job:
        # A call by name brought its own texts in the message: replace them.
        made |= {name: headers[name] for name in TEXTS}
    made["headers"] = own or None
    # Celery's constructor would search all of these for the call's own headers. Here they are known.
    context = Context.__new__(Context)
    context.update(made)
    return context


def headers_of(job: Job, app: Celery, options: Mapping[str, Any], task: Any = None) -> dict[str, Any]:
    """The headers of Celery's message protocol (``celery.app.amqp.AMQP.as_task_v2``)."""
    task = task or app.tasks.get(job.task)
    longest, key = getattr(task, "argsrepr_maxsize", None) or _longest(app), job.task_id
    # The texts of arguments are for people: Flower, Sentry, ``celery inspect active``.
    about = extensions.instead(seen)(job)
    args, kwargs = about.args, about.kwargs
    # The call's own limits, else the task's.
    limits = [options.get(name, getattr(task, name, None)) for name in ("time_limit", "soft_time_limit")]
    return {
        "lang": "py",
        "task": job.task,
        "id": key,
        "shadow": options.get("shadow"),
        "eta": _iso(job.run_at) if options.get("eta") else None,
        "expires": job.expires_at and _iso(job.expires_at),
        "group": options.get("group_id"),
        "group_index": options.get("group_index"),
        "retries": job.retries,
        "timelimit": limits,
        "root_id": str(job.root) if job.root else key,
        "parent_id": str(job.parent_id) if job.parent_id else None,
        "argsrepr": options.get("argsrepr") or _represent(tuple(args), longest),
        "kwargsrepr": options.get("kwargsrepr") or _represent(kwargs, longest),
        "origin": _origin(os.getpid()),
        "ignore_result": options.get("ignore_result", getattr(task, "ignore_result", None)),
        "replaced_task_nesting": options.get("replaced_task_nesting", 0),
        "stamped_headers": options.get("stamped_headers"),
        "stamps": decoded(options["stamps"]) if "stamps" in options else {},
    }


def seen(job: Job) -> Any:
    """What has ``args`` and ``kwargs`` that people may see: all of them. An extension may keep some back."""
    return job


@lru_cache(maxsize=1)
def _longest(app: Celery) -> int:
    # kombu's cached properties take a lock at each access.
    return int(app.amqp.argsrepr_maxsize)


@lru_cache(maxsize=1)
def _origin(pid: int) -> str:
    return str(anon_nodename())


def given(job: Job) -> dict[str, Any]:
    """The contents of a Celery message's body: the arguments, and the follow-ups of the task. A new copy each time."""
    return {"args": decoded(job.args), "kwargs": decoded(job.kwargs), **embedded(job.options)}


def restore(run: Run) -> None:
    """Give the request the row's contents again. If the body is a coroutine that has ended, it is not awaited again:
    what it said about its follow-ups stays.
    """
    row = given(run.job)
    for name in _EMBEDDED if run.body is not None else ():
        del row[name]
    run.request.update(row)


def embedded(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the body has besides the arguments."""
    if not options:
        return dict.fromkeys(_EMBEDDED)
    # Their arguments, too, get back the types that the caller gave.
    return {name: decoded(options.get(option)) for name, option in _EMBEDDED.items()}


def _iso(moment: Any) -> str | None:
    # In a row that is not written yet it may be an expression, whose value is not known.
    return moment.isoformat() if hasattr(moment, "isoformat") else None


def _represent(value: Any, longest: int) -> str:
    """Arguments as Celery shows them in logs and events; plain values, the usual case, take a shortcut."""
    parts = value.values() if isinstance(value, dict) else value
    if all(each is None or type(each) in (int, bool) for each in parts) and len(text := repr(value)) < longest:
        return text
    value = tuple(map(decoded, value)) if isinstance(value, tuple) else decoded(value)
    return str(saferepr(value, longest))
