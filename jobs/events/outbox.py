"""Events of this service, written as rows into the caller's transaction; ``jobs.events.relay`` hands them on."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.db import connections

from jobs.calling.after_commit import ring_after
from jobs.conf import conf, service
from jobs.lifecycle.run import current_job
from jobs.models.fields import uuid7
from jobs.models.values import check_size

#: The payload of a ring for events that are to be handed on; no queue is called so.
RING = "\tevents"

#: The columns, and their types: in a SELECT PostgreSQL does not know those of parameters.
_COLUMNS = {
    "uuid": "uuid",
    "name": "text",
    "version": "int",
    "source": "text",
    "data": "json",
    "order_key": "text",
    "headers": "jsonb",
    "job": "uuid",
}

#: Each transaction keeps the key's lock until its commit, so ids of one key are in the order of their commits.
_LOCKED = "pg_advisory_xact_lock(hashtextextended(%s, 7215))"


def insert(
    name: str, version: int, data: dict[str, Any], order_key: str | None, using: str, headers: dict[str, Any]
) -> uuid.UUID:
    """Write an event into the caller's transaction; returns its id.

    Until this transaction ends no other one writes an event of its order key. (SQLite has one writer.)

    Raises:
        ValueError: it is too large.
    """
    connection, key, job = connections[using], uuid7(), current_job()
    text = json.dumps(data)
    check_size(text, f"the event {name} has", conf().MAX_ARGS_BYTES)
    said = json.dumps(headers) if headers else None
    values: list[Any] = [key.hex, name, version, service(), text, order_key, said, job and job.pk.hex]
    source = f"VALUES ({', '.join(['%s'] * len(_COLUMNS))})"
    if order_key is not None and connection.vendor == "postgresql":
        source = f"SELECT {', '.join(f'%s::{cast}' for cast in _COLUMNS.values())} FROM {_LOCKED}"
        values.append(f"{name}\0{order_key}".replace("\0", " "))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO jobs_event ({', '.join(_COLUMNS)}) {source}", values)
    ring_after(using, RING)
    return key
