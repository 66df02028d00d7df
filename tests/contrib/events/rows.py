"""Rows of events, for tests that need no worker."""

from __future__ import annotations

import datetime

from django.utils import timezone

from jobs.events.models import Event


def row(name: str = "shop.order.paid", age: float = 0, **more) -> Event:
    at = timezone.now() - datetime.timedelta(seconds=age)
    return Event.objects.create(**{"name": name, "source": "shop", "at": at, "data": {"order_id": 7}, **more})


def open_ones() -> dict[str, Event]:
    """One of each kind that has an index, by the name of the kind; and two that are through."""
    now = timezone.now()
    return {
        "unrelayed": row(age=60),
        "unsent": row(relayed_at=now, number=1, age=120),
        "parked": row(received_at=now - datetime.timedelta(seconds=180), source="crm"),
        "problem": row(received_at=now, relayed_at=now, source="crm", problem="no handler knows version 9", age=240),
        "sent": row(relayed_at=now, number=2, sent_at=now),
        "received": row("crm.user.moved", received_at=now, relayed_at=now, source="crm"),
    }
