"""Stray messages: without a row, or of no use to the worker that got them. They become rows; nothing is silent.

A message that no ``delay()`` of ours made (``send_task`` by name, ``celery call``, another service, a producer from
before the switch) is adopted: it gets the row that it lacks, and is a job from then on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery.utils.time import maybe_iso8601
from django.db import InterfaceError, OperationalError, connections
from django.db.models.functions import Now
from django.utils import timezone

from jobs import databases, lifecycle
from jobs.arguments import as_uuid, normalize, scrub, storable
from jobs.board import board, is_alive
from jobs.conf import conf
from jobs.models import Job, State

logger = logging.getLogger("jobs")

#: Seconds until a job is published again that went to a worker which does not know its task, or is too old for it (a
#: rolling deploy).
UNKNOWN_PAUSE = 5.0

#: Seconds until a job is published again whose message could not be read.
UNREADABLE_PAUSE = 60.0

#: Why a job is put off whose message a worker got and could not run: the types of its error.
KINDS = ("NotRegistered", "NewerVersion", "MalformedMessage", "DecodeError", "InvalidTaskError")

#: What makes a message one that no worker will ever run.
UNREADABLE = ("DecodeError", "InvalidTaskError")

#: The headers of Celery's message protocol; others are the caller's own.
HEADERS: tuple[str, ...] = (
    "lang",
    "task",
    "id",
    "shadow",
    "group",
    "group_index",
    "retries",
    "timelimit",
    "root_id",
    "parent_id",
)
HEADERS += ("argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps")


def adopt(task: str, request: Any, args: Any, kwargs: Any) -> str:
    """Give a foreign message its row, if it has none yet; returns the row's database alias.

    Raises:
        TypeError, ValueError: what it carries cannot be kept as JSON.
        django.db.Error: no database; nothing was written, or the row is there.
    """
    headers = {name: getattr(request, name, None) for name in HEADERS} | (request.headers or {}) | {"task": task}
    embed = {name: getattr(request, name, None) for name in ("callbacks", "errbacks", "chain", "chord")}
    properties = {"reply_to": request.reply_to, "correlation_id": request.correlation_id}
    job = _row(headers | {"expires": request.expires}, args, kwargs, embed, request.delivery_info or {}, properties)
    # Its message is here: nobody has to publish another.
    job.dispatched_at = Now()
    using = databases.job_alias()
    Job.objects.using(using).bulk_create([job], ignore_conflicts=True)
    return using


def _row(
    headers: Mapping[str, Any],
    args: Any,
    kwargs: Any,
    embed: Any,
    delivery: Mapping[str, Any],
    properties: Mapping[str, Any],
) -> Job:
    plain_args, plain_kwargs = normalize(args, kwargs)
    key = as_uuid(headers.get("id")) or uuid.uuid4()
    queue = str(delivery.get("routing_key") or "")
    publish = {
        "exchange": delivery.get("exchange") or "",
        "routing_key": queue,
        "delivery_mode": 2,
        "correlation_id": properties.get("correlation_id") or str(key),
        "reply_to": properties.get("reply_to"),
        "priority": delivery.get("priority"),
    }
    publish = {name: value for name, value in publish.items() if value is not None}
    expires = maybe_iso8601(headers.get("expires"))
    if expires is not None and timezone.is_naive(expires):
        expires = timezone.make_aware(expires, timezone.get_default_timezone())
    job = Job(
        id=key,
        task=_text(headers.get("task"), 255),
        args=plain_args,
        kwargs=plain_kwargs,
        options=storable({"publish": publish, "declare": [], "embed": embed, "event": None}, "the options"),
        headers=storable({**headers, "eta": None}, "headers"),
        queue=_text(queue, 255),
        priority=_within(delivery.get("priority"), -(2**15), 2**15 - 1),
        expires_at=expires,
        retries=_within(headers.get("retries"), 0, 2**31 - 1) or 0,
        parent_id=as_uuid(headers.get("parent_id")),
        root_id=as_uuid(headers.get("root_id")) or key,
        state=State.READY,
    )
    job.headers.pop("expires", None)
    return job


def _within(value: Any, least: int, most: int) -> int | None:
    """What a column can hold; another service may send anything."""
    return None if value is None else max(least, min(int(value), most))


def _text(value: Any, limit: int) -> str:
    return scrub(str(value or ""))[:limit] or "?"


# Put aside: the worker's main process has no database connection, and leaves it to its companion


def put_aside(directory: Path, kind: str, message: Any, exc: BaseException) -> dict[str, str]:
    """Write a message that cannot be run here into a file for :func:`keep`; returns the fields of a line about it.

    Raises:
        OSError: there is no room for it.
    """
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    try:
        payload = message.payload
    except Exception:
        payload = None
    if isinstance(payload, Mapping):
        # Celery's first protocol: all in the body.
        headers = {**payload, **headers}
        payload = [headers.pop("args", ()), headers.pop("kwargs", {}), {}]
    if not (isinstance(payload, list | tuple) and len(payload) == 3):
        payload = None
    stray = {
        "kind": kind,
        "headers": dict(headers),
        "payload": payload,
        "body": repr(message.body)[:2000],
        "delivery": {**(message.delivery_info or {}), "priority": (message.properties or {}).get("priority")},
        "properties": {name: (message.properties or {}).get(name) for name in ("reply_to", "correlation_id")},
        "error": f"{type(exc).__name__}: {exc}",
    }
    try:
        text = json.dumps(stray, default=repr)
    except (TypeError, ValueError):
        # Keys that are no strings: from another serializer.
        headers = {name: headers.get(name) for name in ("id", "task") if isinstance(headers.get(name), str)}
        text = json.dumps({**stray, "headers": headers, "payload": None}, default=repr)
    directory.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(directory):
        raise PermissionError(f"{directory} belongs to somebody else")
    name = str(uuid.uuid4())
    partial = directory / f"{name}.part"
    partial.write_text(text)
    partial.rename(directory / f"{name}.json")
    return _about(headers)


def directory_of(app: Any, pid: int) -> Path:
    """Where a worker of this project leaves its strays until its companion kept them; made for the first one."""
    database = connections.settings[databases.home()]
    project = repr((app.conf.broker_url, database["HOST"], database["PORT"], str(database["NAME"])))
    name = f"jobs-strays-{hashlib.sha256(project.encode()).hexdigest()[:16]}-{pid}"
    return Path(tempfile.gettempdir(), name)


def keep_orphans(app: Any) -> int:
    """Keep what workers of this project and this machine left that are dead."""
    done = 0
    pattern = directory_of(app, 0).name[:-1] + "*"
    for directory in Path(tempfile.gettempdir()).glob(pattern):
        if _is_ours(directory) and not is_alive(int(directory.name.rpartition("-")[2])):
            done += keep_all(directory)
            drop(directory)
    return done


def _is_ours(directory: Path) -> bool:
    """In a folder that everybody may write to, somebody may have been faster."""
    try:
        return directory.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def drop(directory: Path) -> None:
    """Remove an empty directory."""
    with suppress(OSError):
        directory.rmdir()


def _about(headers: Mapping[str, Any]) -> dict[str, str]:
    key = headers.get("id")
    return {"job": str(as_uuid(key) or key), "task": str(headers.get("task"))}


def keep_all(directory: Path) -> int:
    """Keep what was put aside as rows; a file goes only after its row was written.

    One that no row can hold stays as a file, and stops no other.
    """
    done = 0
    for path in sorted(directory.glob("*.json")) if _is_ours(directory) else ():
        headers: dict[str, Any] = {}
        try:
            stray = json.loads(path.read_text())
            headers = stray["headers"]
            keep(stray)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            kept = path.rename(path.with_suffix(".unkept"))
            logger.exception(
                "a stray message cannot be kept as a row, and is left in %s",
                kept,
                extra={"action": "stray_unkept", "node": str(board.node), **_about(headers)},
            )
            continue
        path.unlink()
        done += 1
    return done


def keep(stray: dict[str, Any]) -> None:
    """Postpone the job that the message belongs to; a foreign message gets a row of its own.

    One whose task is unknown here, or that a worker failed to take in, waits for another; one of a later release for
    a worker of that. One that cannot be read is kept ``failed``.
    """
    headers = stray["headers"]
    is_unknown, is_newer = stray["kind"] == "NotRegistered", stray["kind"] == "NewerVersion"
    is_final = is_newer or stray["payload"] is None or not headers.get("task") or stray["kind"] in UNREADABLE
    text = f"no worker that got it knows the task {headers.get('task')!r}" if is_unknown else stray["error"]
    if is_final and not is_newer:
        text += f"; the message: {stray['body']}"
    error = lifecycle.error_entry(stray["kind"], text)
    pause = UNKNOWN_PAUSE if is_unknown or is_newer else UNREADABLE_PAUSE
    ours = headers.get("jobs")
    alias = ours.get("db") if isinstance(ours, dict) else None
    using = alias if alias in conf().DATABASES else databases.job_alias()
    key = as_uuid(headers.get("id"))
    jobs = Job.objects.using(using)
    if key is not None and (job := jobs.filter(pk=key).first()) is not None:
        if not lifecycle.postpone(job, pause, error) and jobs.filter(pk=key, state=State.READY).exists():
            raise OperationalError(f"somebody has locked the job {key}")
        return
    if alias == using:
        return  # pruned, or never committed
    try:
        args, kwargs, embed = stray["payload"] or ((), {}, {})
        job = _row(headers, args, kwargs, embed, stray["delivery"], stray["properties"])
    except (TypeError, ValueError):
        is_final = True
        job = _row({"id": headers.get("id"), "task": headers.get("task")}, (), {}, {}, stray["delivery"], {})
    job.error, job.errors = error, [error]
    if is_final:
        job.state, job.finished_at = State.FAILED, Now()
    else:
        job.state, job.run_at = State.SCHEDULED, lifecycle.now_plus(pause)
    Job.objects.using(using).bulk_create([job], ignore_conflicts=True)
