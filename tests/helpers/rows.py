"""Rows for tests that need no worker: jobs in any state, and nodes."""

from __future__ import annotations

import datetime
import json
import random
import uuid

from django.db import connection
from django.db.models import JSONField, Value
from django.utils import timezone

from jobs.models import Job, Node
from jobs.models.fields import first_id
from jobs.store import databases, heartbeats

ERROR = {"type": "ValueError", "message": "no", "traceback": "", "at": "2026-01-02T03:04:05+00:00", "attempt": 1}

#: What somebody may have written into a row by hand.
MALFORMED = [
    {"errors": Value(None, JSONField())},
    {"errors": 5},
    {"errors": ["x"]},
    {"error": {"type": "T"}},
    {"error": ["x"]},
    {"options": []},
    {"args": {"a": 1}},
    {"kwargs": [1]},
]


def make(state: str = "ready", age: float = 0.0, **more) -> Job:
    """A row in a state; ``age`` in seconds."""
    at = timezone.now() - datetime.timedelta(seconds=age)
    # As it was called then: the id says when.
    key = uuid.UUID(int=first_id(more.pop("created_at", at)).int | random.getrandbits(62))
    values = {
        "id": key,
        "task": "tests.tasks.effect",
        "queue": "celery",
        "args": ["x"],
        "state": state,
        "run_at": at,
        **more,
    }
    if state == "running":
        values = {"node": more.get("node") or make_node(), "token": 1, "started_at": at, "lease": 1} | values
    if state in ("succeeded", "failed", "cancelled"):
        values = {"finished_at": at, "error": None if state == "succeeded" else ERROR} | values
    return Job.objects.get(pk=Job.objects.create(**values).pk)


def ended(at: datetime.datetime, ran: float = 1.0, waited: float = 2.0, state: str = "succeeded", **more) -> Job:
    started = at - datetime.timedelta(seconds=ran)
    run_at = started - datetime.timedelta(seconds=waited)
    return make(state, finished_at=at, started_at=started, run_at=run_at, **more)


def make_node(**more) -> Node:
    return Node.objects.create(**{"hostname": "web1", "pid": 4711, "queues": ["celery", "mail"], **more})


def let_heartbeat(node: Node, silence: float = -600.0) -> Node:
    """Let a node beat, once. On a busy machine a test takes longer than a node may be silent, so it beats ahead."""
    with databases.side() as side:
        heartbeats.first(side, node.pk)
        with side.cursor() as cursor:
            cursor.execute(f"UPDATE jobs_heartbeat SET at = {side.now} - %s WHERE node = %s", [silence, node.pk.hex])
    return node


def say(job: Job, done: float, total: float | None = 4, text: str = "") -> None:
    """How far the run of a job is, as the supervisor writes it."""
    from jobs.contrib.results import store

    result = {"current": done, "total": total, "description": text}
    meta = json.dumps({"status": "PROGRESS", "result": result})
    with databases.side() as side:
        store.write_said(side, json.dumps([job.task_id, meta, None, job.lease]).encode())


_FILL = """
INSERT INTO jobs_job (id, task, queue, state, run_at, expires_at, finished_at, node_id, token, started_at, lease)
SELECT gen_random_uuid(), 'tests.tasks.noop', %(queue)s, %(state)s, now() + i * interval '1 millisecond' - %(age)s,
       CASE WHEN i %% 2 = 0 AND %(state)s = 'ready' THEN now() + interval '1 day' END,
       CASE WHEN %(state)s = 'succeeded' THEN now() END, %(node)s, 1, now(), 1
FROM generate_series(1, %(rows)s) AS i
"""


def fill(state: str, rows: int, age: float = 86400.0, queue: str = "celery", node: uuid.UUID | None = None) -> None:
    """Many rows at once (PostgreSQL). ``age`` in seconds; below zero it is to come."""
    values = {"queue": queue, "state": state, "rows": rows, "age": datetime.timedelta(seconds=age), "node": node}
    with connection.cursor() as cursor:
        cursor.execute(_FILL, values)
