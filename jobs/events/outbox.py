"""Events of this service, written as rows into the caller's transaction; ``jobs.events.relay`` hands them on."""

from __future__ import annotations

import json
import uuid
from typing import Any

from jobs.calling.after_commit import notify_after
from jobs.conf import conf, service
from jobs.events import store
from jobs.lifecycle.run import current_job
from jobs.models.fields import uuid7
from jobs.models.values import check_size

#: What a notification says for events that are to be handed on; no queue is called so.
WAKEUP = "\tevents"


def insert(
    name: str, version: int, data: dict[str, Any], order_key: str | None, using: str, headers: dict[str, Any]
) -> uuid.UUID:
    """Write an event into the caller's transaction; returns its id.

    Raises:
        ValueError: it is too large.
    """
    key, job, text = uuid7(), current_job(), json.dumps(data)
    check_size(text, f"the event {name} has", conf().MAX_ARGS_BYTES)
    told = {"uuid": key.hex, "name": name, "version": version, "source": service(), "data": text}
    told |= {"order_key": order_key, "headers": json.dumps(headers) if headers else None, "job": job and job.pk.hex}
    store.insert(using, told)
    notify_after(using, WAKEUP)
    return key
