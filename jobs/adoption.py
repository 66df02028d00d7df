"""A message that no ``delay()`` of ours made gets the row that it lacks, and is a job from then on.

It comes from ``send_task`` by name, ``celery call``, another service, or a producer from before the switch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.utils.time import maybe_iso8601
from django.utils import timezone

from jobs import calls, databases
from jobs.arguments import as_uuid, normalize, scrub, storable
from jobs.board import board
from jobs.fields import uuid7
from jobs.models import Job, State
from jobs.project import celery_app
from jobs.ring import bell
from jobs.syncpoints import reach

#: Kept also when it is 0 or False.
STATED = ("group_index", "ignore_result")


def adopt(task: str, request: Any, args: Any, kwargs: Any) -> None:
    """Give a foreign message its row, if it has none yet. Race: of several copies, one inserts.

    Raises:
        TypeError, ValueError: what it carries cannot be kept as JSON.
        django.db.Error: no database; nothing was written, or the row is there.
    """
    job = _row(task, request, args, kwargs)
    reach("before_adopt")
    Job.objects.using(databases.job_alias()).bulk_create([job], ignore_conflicts=True)
    reach("after_adopt")
    bell.ring()


def _row(task: str, request: Any, args: Any, kwargs: Any) -> Job:
    plain_args, plain_kwargs = normalize(args, kwargs)
    key = as_uuid(request.id) or uuid7()
    delivery = request.delivery_info or {}
    priority = _within(delivery.get("priority"), -(2**15), 2**15 - 1)
    limits = request.timelimit or (None, None)
    given = {
        "headers": _own(request.headers),
        "link": request.callbacks,
        "link_error": request.errbacks,
        "chain": request.chain,
        "chord": request.chord,
        "group_id": request.group,
        "group_index": request.group_index,
        "shadow": request.shadow,
        "reply_to": request.reply_to,
        "replaced_task_nesting": request.replaced_task_nesting,
        "stamped_headers": request.stamped_headers,
        "stamps": request.stamps,
        "time_limit": limits[0],
        "soft_time_limit": limits[1],
        "exchange": delivery.get("exchange"),
        "routing_key": delivery.get("exchange") and delivery.get("routing_key"),
        "ignore_result": request.ignore_result,
    }
    kept = {name: value for name, value in given.items() if value or (name in STATED and value is not None)}
    app = celery_app()
    job = Job(
        id=key,
        task=_text(task, 255),
        args=plain_args,
        kwargs=plain_kwargs,
        options=storable(kept, "the options"),
        queue=_text(_queue(app, delivery), 255),
        priority=priority,
        rank=calls.rank_of(app, priority) if app is not None else 0,
        expires_at=_moment(request.expires),
        retries=_within(request.retries, 0, 2**15 - 1) or 0,
        parent_id=as_uuid(request.parent_id),
        root=as_uuid(request.root_id),
        made_at=timezone.now(),
        state=State.READY,
    )
    if job.root == key:
        job.root = None
    return job


def _queue(app: Any, delivery: Mapping[str, Any]) -> Any:
    """The queue that the message came by; it says only what it was sent to."""
    exchange, routing_key = delivery.get("exchange"), delivery.get("routing_key")
    bound = calls.bound_queue(app, str(exchange), routing_key) if app is not None and exchange else None
    if bound is not None:
        return bound.name
    # Through the default exchange a queue is reached by its name. What others have bound is run by whoever got it.
    consumed = board.queues
    return consumed[0] if exchange and consumed and routing_key not in consumed else routing_key


def _own(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (headers or {}).items() if name != "timelimit"}


def _moment(value: Any) -> Any:
    moment = maybe_iso8601(value)
    if moment is not None and timezone.is_naive(moment):
        return timezone.make_aware(moment, timezone.get_default_timezone())
    return moment


def _within(value: Any, least: int, most: int) -> int | None:
    """What a column can hold; another service may send anything."""
    return None if value is None else max(least, min(int(value), most))


def _text(value: Any, limit: int) -> str:
    return scrub(str(value or ""))[:limit] or "?"
