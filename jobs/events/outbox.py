"""Emit an event: one row in the caller's transaction."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.db import connections

from jobs.arguments import check_size
from jobs.calling import outbox
from jobs.conf import celery_app, conf
from jobs.lifecycle.ring import EVENTS
from jobs.lifecycle.run import current_job
from jobs.models.fields import uuid7

_COLUMNS = ("uuid", "name", "version", "source", "data", "order_key", "headers", "job")

#: The lock makes the order of the numbers that of the commits: who has the key's lock has it until then.
_LOCKED = "pg_advisory_xact_lock(hashtextextended(%s, 7215))"


def service() -> str:
    """The name of this service."""
    app = celery_app()
    return conf().SERVICE or (app and app.main) or "jobs"


def insert(
    name: str, version: int, data: dict[str, Any], order_key: str | None, using: str, headers: dict[str, Any]
) -> uuid.UUID:
    """Write the event into the caller's transaction; returns its id.

    With an order key no other transaction writes one of the same key until this one ends. (SQLite has one writer.)

    Raises:
        ValueError: it is too large.
    """
    connection, key, job = connections[using], uuid7(), current_job()
    text = json.dumps(data)
    check_size(text, f"the event {name} has", conf().MAX_ARGS_BYTES)
    is_native = connection.features.has_native_uuid_field
    values: list[Any] = [
        key if is_native else key.hex,
        name,
        version,
        service(),
        text,
        order_key,
        json.dumps(headers) if headers else None,
        job and (job.pk if is_native else job.pk.hex),
    ]
    into = f"INSERT INTO jobs_event ({', '.join(_COLUMNS)})"
    marks = ", ".join(["%s"] * len(_COLUMNS))
    if order_key is not None and connection.vendor == "postgresql":
        casts = ("uuid", "text", "int", "text", "json", "text", "jsonb", "uuid")
        marks = ", ".join(f"%s::{cast}" for cast in casts)
        sql, values = f"{into} SELECT {marks} FROM {_LOCKED}", [*values, f"{name}\0{order_key}".replace("\0", " ")]
    else:
        sql = f"{into} VALUES ({marks})"
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
    outbox.ring_after(using, EVENTS)
    return key
