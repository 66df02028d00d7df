"""Rows for tests that need no worker: jobs in any state, and nodes."""

from __future__ import annotations

import datetime
import uuid

from django.db.models import JSONField, Value
from django.utils import timezone

from jobs.models import Job, Node
from tests.tasks import effect

ERROR = {"type": "ValueError", "message": "no", "traceback": "", "at": "2026-01-02T03:04:05+00:00", "attempt": 1}

#: What somebody may have written into a row by hand.
MALFORMED = [
    {"errors": Value(None, JSONField())},
    {"errors": 5},
    {"errors": ["x"]},
    {"error": {"type": "T"}},
    {"error": ["x"]},
    {"options": []},
    {"headers": 5},
    {"args": {"a": 1}},
    {"kwargs": [1]},
]


def make(state: str = "ready", age: float = 0.0, **more) -> Job:
    """A real row, moved into a state; ``age`` in seconds."""
    key = effect.apply_async(("x",), queue=more.pop("queue", None)).id
    at = timezone.now() - datetime.timedelta(seconds=age)
    values = {"state": state, "created_at": at, "run_at": at, **more}
    if state == "running":
        values = {"node": more.get("node") or make_node(), "token": uuid.uuid4(), "started_at": at, "lease": 1} | values
    if state in ("succeeded", "failed", "cancelled"):
        values = {"finished_at": at, "error": None if state == "succeeded" else ERROR} | values
    Job.objects.filter(pk=key).update(**values)
    return Job.objects.get(pk=key)


def make_node(**more) -> Node:
    return Node.objects.create(**{"hostname": "web1", "pid": 4711, "queues": ["celery", "mail"], **more})
