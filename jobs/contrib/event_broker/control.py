"""Control messages: what services say to each other beside their events. Each value is checked: any sender may lie."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jobs.contrib.event_broker import amqp, wire
from jobs.events.declare import PATTERN
from jobs.events.schema import Misfit, Schema
from jobs.events.settings import RULES

#: Patterns of one service, at the most.
MOST = 1000


def hello(service: str, patterns: list[str]) -> None:
    """I read these names: how far are they?"""


def position(name: str, number: int) -> None:
    """My last number of the name is this."""


def resend(source: str, name: str, first: int, last: int, service: str, since: datetime | None) -> None:
    """Send the service these numbers again, but nothing from before it wanted the name."""


def gone(name: str, number: int, is_lost: bool) -> None:
    """I have nothing up to this number for you. (Lost: I had it once.)"""


_SAYS: tuple[Callable[..., None], ...] = (hello, position, resend, gone)
_SCHEMAS = {what: Schema.of(says, what) for what, says in zip(amqp.CONTROL, _SAYS, strict=True)}


def is_service(name: str) -> bool:
    """Whether a service may have this name."""
    return re.fullmatch(RULES["SERVICE"][0], name) is not None


def _is_number(value: int) -> bool:
    return 0 <= value < wire.NUMBERS


#: What each field may be, besides its type.
_BOUNDS: dict[str, Callable[[Any], bool]] = {
    "service": is_service,
    "source": lambda value: len(value) <= wire.LONGEST and is_service(amqp.origin_of(value)[0]),
    "name": lambda value: 0 < len(value) <= wire.LONGEST,
    "number": _is_number,
    "first": _is_number,
    "last": _is_number,
    "since": lambda value: value is None or wire.moment_of(value) is not None,
    "patterns": lambda value: len(value) <= MOST and all(PATTERN.fullmatch(each) for each in value),
}


def read(message: wire.Message) -> dict[str, Any]:
    """What the message says, by name.

    Raises:
        wire.Malformed: it says nothing that a service would.
    """
    try:
        values = _SCHEMAS[message.name].load(message.data)
    except Misfit as exc:
        raise wire.Malformed(str(exc)) from None
    for name, value in {**values, "source": values.get("source", message.source)}.items():
        if name in _BOUNDS and not _BOUNDS[name](value):
            raise wire.Malformed(f"{message.name}: its {name} is {repr(value)[:200]}, which none can be")
    if not _BOUNDS["source"](message.source):
        raise wire.Malformed(f"{message.name}: no service is called {message.source!r}")
    return values
