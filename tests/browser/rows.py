"""Rows of a site whose worker runs, and which has a schedule."""

from __future__ import annotations

import datetime

from django.utils import timezone

from jobs.models import Node, Schedule
from tests.helpers.rows import let_heartbeat, make_node

TASK = "shop.tasks.charge"


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


def worker(**more) -> Node:
    return let_heartbeat(make_node(started_at=ago(86400), **more))


def schedule(**more) -> None:
    """One that is in time, but for ``more``."""
    times = {"defined_at": ago(9999), "last_tick": ago(60), "next_tick": ago(-60), "last_run": ago(60)}
    given = {"name": "report", "task": TASK, "timing": "every hour", "definition": "x", **times, **more}
    Schedule.objects.create(**given)
