"""The way to services with databases of their own: ``jobs.contrib.event_broker``, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event as Signal
from typing import Any, Protocol, cast

from django.core.exceptions import ImproperlyConfigured

from jobs import extensions
from jobs.conf import conf
from jobs.events.models import Event


class BrokerError(Exception):
    """The broker is away, or refuses."""


class Publisher(Protocol):
    """The module ``publisher`` of the extension that has the way."""

    #: Events were given their numbers.
    numbered: Signal

    def give_numbers(self, using: str, events: Sequence[Event]) -> None:
        """Give each event its number, in the transaction that hands it on."""

    def send_to(self, service: str, events: Sequence[Event], using: str, again: str | None) -> int:
        """Send events to one service alone; returns how many it gets. Raises :class:`BrokerError`, ``ValueError``."""
        raise NotImplementedError


def publisher() -> Publisher | None:
    """What sends events to other services; None: there is no broker."""
    if conf().EVENT_BROKER is None:
        return None
    found: Any = next(extensions.modules("publisher"), None)
    if found is None:
        raise ImproperlyConfigured("JOBS['EVENT_BROKER'] is set, and jobs.contrib.event_broker is not installed")
    return cast(Publisher, found)
