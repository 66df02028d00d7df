"""Events as messages: CloudEvents 1.0 over AMQP 0.9.1 (binary mode, JSON), and Celery's own tasks.

CloudEvents has a binding for AMQP 1.0 alone. Its names of headers stand in the headers of 0.9.1, as RabbitMQ itself
translates between the two. Knative's binding for RabbitMQ (``ce-``) is understood as well.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs.conf import app_here
from jobs.events.models import TRACE
from jobs.models.values import decoded, jsonable, parse_uuid

PREFIX = "cloudEvents:"
PREFIXES = ("cloudevents:", "cloudevents_", "ce-", "ce_")
#: How many characters a column takes; and the end of the numbers, low enough to count on from any of them.
LONGEST, NUMBERS = 255, 2**62


class Malformed(ValueError):
    """A message that is no event; says in plain words why not."""


@contextmanager
def _needs(what: str) -> Iterator[None]:
    """Raise ``Malformed`` for an error in the block; ``what`` says what is wrong."""
    try:
        yield
    except Malformed:
        raise
    except (TypeError, ValueError, RecursionError) as exc:
        raise Malformed(f"{what}: {exc}" if what else str(exc)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An event on its way between services."""

    id: str
    #: Which service tells it.
    source: str
    name: str
    version: int = 1
    time: datetime | None = None
    #: Events of one key stay in order.
    key: str | None = None
    #: The position among its source's events of that name.
    number: int | None = None
    #: W3C's ``traceparent`` and ``tracestate``.
    trace: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    #: Positional values, in the order of the parameters: only Celery's tasks have some.
    args: list[Any] = field(default_factory=list)
    #: The number of the replay that has it handled again; None: it is not handled again.
    again: str | None = None


def key_of(message: Message) -> uuid.UUID:
    """The event's id as the key of a row; an id that is no UUID is unique for its source alone."""
    return parse_uuid(message.id) or uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([message.source, message.id]))


def encode(message: Message) -> tuple[bytes, dict[str, Any]]:
    """The body and the properties of a message in CloudEvents' binary mode."""
    return _json(message.data), {**_properties(message), "type": message.name}


def encode_celery(message: Message) -> tuple[bytes, dict[str, Any]]:
    """The same as a Celery task (protocol 2), for services with celery-amqp-events. We read the rest in its headers."""
    task = app_here().amqp.as_task_v2(message.id, message.name, message.args, message.data)
    properties = _properties(message)
    properties["headers"] |= task.headers
    return _json(task.body), {**properties, "correlation_id": message.id}


def _properties(message: Message) -> dict[str, Any]:
    attributes: dict[str, str | None] = {
        "specversion": "1.0",
        "id": message.id,
        "source": message.source,
        "type": message.name,
        "eventversion": str(message.version),
        "time": message.time.isoformat() if message.time else None,
        "partitionkey": message.key,
        # It is compared as text.
        "sequence": None if message.number is None else f"{message.number:019d}",
        "replay": message.again,
        **message.trace,
    }
    return {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "message_id": message.id,
        # AMQP knows no time before 1970.
        **({"timestamp": at} if message.time and (at := int(message.time.timestamp())) >= 0 else {}),
        "headers": {PREFIX + name: value for name, value in attributes.items() if value is not None},
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode(body: bytes | str, properties: Mapping[str, Any]) -> Message:
    """The event that a message is: CloudEvents in binary or structured mode, or a Celery task.

    Parameters:
        properties: those of AMQP, with ``headers`` or, as py-amqp names them, ``application_headers``.

    Raises:
        Malformed: it is no event.
    """
    headers = properties.get("headers") or properties.get("application_headers") or {}
    form = str(properties.get("content_type") or "application/json").partition(";")[0].strip().lower()
    is_whole = form == "application/cloudevents+json"
    if form.startswith("application/cloudevents") and not is_whole:
        raise Malformed(f"it is of {form}: send application/cloudevents+json, one event in a message")
    if form not in ("application/json", "text/json") and not form.endswith("+json"):
        raise Malformed(f"its data is of {form}: send application/json")
    with _needs("its body is not JSON"):
        data: Any = json.loads(body) if body or is_whole else {}
    args: Any = []
    attributes = _attributes(headers)
    if is_whole:
        event = _object(data, "the event")
        attributes = {name.lower(): value for name, value in event.items() if name not in ("data", "data_base64")}
        data = event.get("data", {})
        if "data_base64" in event:
            with _needs("its data_base64 is not JSON"):
                data = json.loads(base64.b64decode(event["data_base64"], validate=True))
    elif "task" in headers and "id" in headers:
        with _needs("it is no task of Celery's protocol 2"):
            args, kwargs, _ = data
            # Values of types that kombu tags become text.
            args, data = json.loads(json.dumps(decoded([args, kwargs]), default=_untagged))
        host = str(headers.get("origin") or "").rpartition("@")[2]
        attributes = {"id": headers["id"], "type": headers["task"], "source": f"celery:{host}", **attributes}
    if str(attributes.get("specversion", "1.0")).partition(".")[0] != "1":
        raise Malformed(f"it is of CloudEvents {attributes['specversion']}: send 1.0")
    attributes = {name: headers[name] for name in TRACE if name in headers} | attributes
    with _needs(""):
        data, args = jsonable(_object(data, "its data"), "data"), jsonable(args, "args")
        texts = {name: jsonable(_text(value), name) for name, value in attributes.items() if value is not None}
    if missing := [name for name in ("id", "source", "type") if not texts.get(name)]:
        raise Malformed(f"it has no {' and no '.join(missing)}: send a CloudEvent")
    for name in ("source", "type", "partitionkey", "replay"):
        if len(texts.get(name, "")) > LONGEST:
            raise Malformed(f"its {name} has {len(texts[name])} characters: send {LONGEST} at the most")
    version = _number(texts.get("eventversion", "1"), 2**15)
    if version is None:
        raise Malformed(f"its eventversion is {texts['eventversion'][:50]!r}: send a whole number below 32768")
    return Message(
        id=texts["id"],
        source=texts["source"],
        name=texts["type"],
        version=version,
        time=_time(texts.get("time"), properties.get("timestamp")),
        key=texts.get("partitionkey"),
        # Other senders count all their events together, or with gaps, or send any text.
        number=_number(texts.get("sequence", ""), NUMBERS) if "eventversion" in texts else None,
        trace={name: one for name in TRACE if (one := texts.get(name))},
        data=data,
        args=args,
        again=texts.get("replay"),
    )


def _attributes(headers: Mapping[str, Any]) -> dict[str, Any]:
    """CloudEvents' attributes, whatever prefix the sender's library writes."""
    return {
        lower.removeprefix(prefix): value
        for lower, value in ((name.lower(), value) for name, value in headers.items())
        for prefix in PREFIXES
        if lower.startswith(prefix)
    }


def _untagged(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError("an argument is bytes, which an event cannot carry")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is a {type(value).__name__} and no JSON object: send the fields by their names")
    return value


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(text: str, end: int) -> int | None:
    """The text as a number from 0 to below the end; None: it is not one."""
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return int(text) if is_number and int(text) < end else None


def _time(text: str | None, timestamp: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.upper()) if text else datetime.fromtimestamp(timestamp, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    # AMQP's own timestamps have no time zone, and are in UTC.
    return moment_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def moment_of(value: datetime) -> datetime | None:
    """The moment, if it is one in every time zone."""
    return value if value.tzinfo and 1 < value.year < 9999 else None
