"""Make a database that looks as after a month of work: SQL copies a row of ``delay()``, and they are counted."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connection

from jobs.contrib.operator import statistics
from jobs.contrib.operator.models import Statistic
from jobs.contrib.operator.statistics import HOUR, MINUTE, QUARTER
from jobs.models import Job, Node
from jobs.store import databases, identity

SPAN = datetime.timedelta(days=30)

#: Parts of all jobs. What is left of 1 is scheduled, ready or running.
SUCCEEDED, FAILED, CANCELLED = 0.96, 0.02, 0.01

QUEUES = ("celery", "mail", "media", "billing", "search", "reports", "imports", "webhooks")
APPS = ("accounts", "billing", "catalog", "mail", "media", "orders", "partners", "reports", "search", "webhooks")
TASKS = tuple(f"{app}.tasks.{verb}" for verb in ("deliver", "refresh", "clean_up") for app in APPS)
ERRORS = (
    *("SMTPServerDisconnected", "SMTPRecipientsRefused", "ConnectionError", "ConnectTimeout", "ReadTimeout"),
    *("HTTPError", "SSLError", "JSONDecodeError", "KeyError", "ValueError", "TypeError", "DoesNotExist"),
    *("IntegrityError", "OperationalError", "ValidationError", "PermissionDenied", "SoftTimeLimitExceeded"),
    *("WorkerLostError", "NodeLost", "PaymentError"),
)

#: Workers that are alive, the processes of each, and workers of the month before, which signed off.
ALIVE, PROCESSES, FORMER = 10, 16, 90

#: How many rows one statement makes.
CHUNK = 20_000

_DRAWN = f"""
WITH drawn AS MATERIALIZED (
    SELECT i, random() AS a, random() AS b, random() AS c, random() AS d, random() AS e,
        random() AS f
    FROM generate_series(%(first)s, %(last)s) AS i
), numbered AS MATERIALIZED (
    SELECT *, 1 + floor({len(TASKS)} * a * a)::int AS number FROM drawn
), named AS MATERIALIZED (
    SELECT *, (%(tasks)s::text[])[number] AS called, (%(queues)s::text[])[1 + number %% {len(QUEUES)}] AS line,
        (%(errors)s::text[])[1 + floor({len(ERRORS)} * f * f)::int] AS kind
    FROM numbered
)
"""

#: An id as this app makes them (UUID version 7), of the moment ``made``.
_KEYED = """, keyed AS MATERIALIZED (
    SELECT *, (lpad(to_hex(floor(extract(epoch FROM made) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(i::text || a), 1, 3) || to_hex(8 + i %% 4) || substr(md5(i::text || b), 1, 15))::uuid AS key
    FROM (SELECT *, {made} AS made FROM {source}) AS timed
)"""

_CALL = {
    "id": "key",
    "task": "called",
    "queue": "line",
    "args": "jsonb_build_array(100000 + i, 'order-' || i)",
    "kwargs": "jsonb_build_object('locale', 'en-GB', 'template', 'shop/' || called || '.html', 'dry_run', false, "
    "'address', 'customer' || i || '@example.com', 'callback', 'https://api.example.com/v2/hooks/' || md5(key::text), "
    "'tags', jsonb_build_array('monthly', 'retail', md5(i::text)))",
    "marker_key": "CASE WHEN number %% 5 = 0 THEN called || ':' || i END",
}

_ENTRY = (
    "jsonb_build_object('type', kind, 'message', kind || ' of ' || called || ': it said 50' || i %% 10, 'traceback', "
    "repeat(E'  File \"/srv/app/partners/client.py\", line ' || i || E', in request\\n    raise\\n', 20), "
    "'at', to_jsonb(ended), 'attempt', {attempt})"
)
_ENDED = _CALL | {
    "state": "became",
    # One of the ten workers that were up at that time.
    "node_id": "(%(nodes)s::uuid[])[1 + floor(greatest(0, least(1, extract(epoch FROM %(now)s - ended) "
    f"/ {SPAN.total_seconds()})) * {FORMER} + {ALIVE} * f)::int]",
    "lease": "CASE became WHEN 'cancelled' THEN 0 WHEN 'failed' THEN 3 ELSE 1 END",
    "retries": "CASE became WHEN 'failed' THEN 2 ELSE 0 END",
    "run_at": "due",
    "started_at": "CASE WHEN became <> 'cancelled' THEN begun END",
    "finished_at": "ended",
    "result": "CASE became WHEN 'succeeded' THEN jsonb_build_object('done', true, 'reference', md5(key::text)) END",
    "error": f"CASE became WHEN 'failed' THEN {_ENTRY.format(attempt=3)} WHEN 'cancelled' THEN "
    "jsonb_build_object('type', 'Cancelled', 'message', 'by ada', 'traceback', '', 'at', to_jsonb(ended), "
    "'attempt', 0) END",
    "errors": "CASE became WHEN 'failed' THEN jsonb_build_array("
    + ", ".join(_ENTRY.format(attempt=attempt) for attempt in (1, 2, 3))
    + ") END",
    "parent_id": "CASE WHEN number %% 10 = 1 THEN gen_random_uuid() END",
}
_ENDED_FROM = """, ended AS MATERIALIZED (
    SELECT *, CASE WHEN b < %(failed)s THEN 'failed' WHEN b < %(failed)s + %(cancelled)s THEN 'cancelled'
        ELSE 'succeeded' END AS became,
        %(begin)s + (%(end)s - %(begin)s) * ((i - %(first)s + c) / (1 + %(last)s - %(first)s)) AS ended
    FROM named
), started AS MATERIALIZED (
    SELECT *, ended - interval '1 second' * 0.005 * number * exp(3 * d) AS begun FROM ended
), planned AS MATERIALIZED (
    SELECT *, begun + interval '1 second' * 0.3 * ln(1 - e) AS due,
        CASE WHEN number %% 10 = 0 THEN interval '10 minutes' * d ELSE interval '0' END AS delay FROM started
)"""

_LIVE = {
    "scheduled": {
        "made": "now() - interval '1 day' * c",
        "run_at": "now() + interval '1 day' + interval '7 days' * d",
        "unique_key": "CASE WHEN i %% 20 = 0 THEN called || ':' || i END",
    },
    "ready": {
        "made": "now() - interval '10 minutes' * c",
        "run_at": "made",
    },
    "running": {
        "made": "now() - interval '1 minute' - interval '10 minutes' * c",
        "run_at": "made",
        "started_at": "now() - interval '1 minute' * d",
        "node_id": f"(%(nodes)s::uuid[])[1 + i %% {ALIVE}]",
        "token": "i",
        "lease": "1",
    },
}

_AROUND = {
    "actions": """
        INSERT INTO jobs_action (job, at, what, by, why)
        SELECT id, finished_at, CASE state WHEN 'failed' THEN 'retry' ELSE 'cancel' END, 'ada', 'asked by the customer'
        FROM jobs_job WHERE state = 'cancelled' OR state = 'failed' AND lease = 3 AND random() < 0.1""",
    "markers": """
        INSERT INTO jobs_marker (key, kind, fingerprint, job, created_at, expires_at)
        SELECT marker_key, 'task', md5(id::text), id, finished_at, finished_at + interval '90 days'
        FROM jobs_job WHERE marker_key IS NOT NULL AND state = 'succeeded'""",
    "effects": """
        INSERT INTO jobs_effect (name, key, state, job, lease, calls, answer, created_at, sent_at)
        SELECT 'charge', id, CASE WHEN state = 'failed' AND random() < 0.01 THEN 'parked' ELSE 'sent' END, id, lease, 1,
            jsonb_build_object('id', md5(id::text)), started_at, finished_at
        FROM jobs_job WHERE task = 'billing.tasks.deliver' AND started_at IS NOT NULL""",
}


def build(jobs: int, say: Callable[[str], None]) -> None:
    """
    Parameters:
        jobs: how many jobs; the parts above say how many of each state.
        say: is called with the progress.
    """
    identity.check_all()
    template = _template()
    values: dict[str, Any] = {
        "template": template.pk,
        "tasks": list(TASKS),
        "queues": list(QUEUES),
        "errors": list(ERRORS),
        "nodes": _nodes(),
    }
    _run("SELECT setseed(0.5)")
    now = values["now"] = databases.clock("default")
    begin = now - SPAN
    ended = round(jobs * (SUCCEEDED + FAILED + CANCELLED))
    for first, last in _chunks(ended):
        since = begin + SPAN * ((first - 1) / ended)
        # The last jobs end at the present moment, so that the last minutes are not empty.
        until = databases.clock("default") if last == ended else begin + SPAN * (last / ended)
        part = {"first": first, "last": last, "begin": since, "end": until}
        whole = SUCCEEDED + FAILED + CANCELLED
        made = _KEYED.format(made="due - delay", source="planned")
        part |= {"failed": FAILED / whole, "cancelled": CANCELLED / whole}
        _insert(_ENDED, _ENDED_FROM + made, {**values, **part})
        say(f"{last:,} of {jobs:,} jobs")
    live = jobs - ended
    running = min(live // 4, ALIVE * PROCESSES)
    ready = (live - running) // 2
    first = ended + 1
    for state, count in (("scheduled", live - running - ready), ("ready", ready), ("running", running)):
        columns = _CALL | _LIVE[state] | {"state": f"'{state}'"}
        made = _KEYED.format(made=columns["made"], source="named")
        _insert(columns, made, {**values, "first": first, "last": first + count - 1})
        first += count
    for name, statement in _AROUND.items():
        say(name)
        _run(statement, values)
    template.delete()
    _count(begin, say)
    say("VACUUM, ANALYZE")
    _run("VACUUM FULL jobs_statistic")
    _run("VACUUM (ANALYZE)")
    _run("CHECKPOINT")


def _template() -> Job:
    """The columns of a new job, also those that later releases add."""
    from shop.tasks import send_welcome_email

    return Job.objects.get(pk=send_welcome_email.delay(1).id)


def _nodes() -> list[uuid.UUID]:
    """Make workers; return those that are alive first."""
    now = databases.clock("default")
    nodes = [
        Node(
            hostname=f"worker{number % 10}",
            pid=1000 + number,
            queues=[QUEUES[(number + step) % len(QUEUES)] for step in range(4)],
            tasks=list(TASKS),
            version="0.1.0",
            pool="prefork",
            concurrency=PROCESSES,
            started_at=now - SPAN * (number + 1) / FORMER,
            dead_at=None if number < ALIVE else now - SPAN * (number - ALIVE) / FORMER,
            signed_off=number >= ALIVE,
        )
        for number in range(ALIVE + FORMER)
    ]
    Node.objects.bulk_create(nodes)
    # The beats lie in the future, because nobody beats while pages are measured.
    beats = (
        "INSERT INTO jobs_heartbeat "
        "SELECT id, 1000, extract(epoch FROM now()) + 86400 FROM jobs_node WHERE dead_at IS NULL"
    )
    _run(beats)
    return [node.pk for node in nodes]


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(1, count + 1, CHUNK):
        yield first, min(first + CHUNK - 1, count)


def _insert(given: dict[str, str], more: str, values: dict[str, Any]) -> None:
    """Insert rows with the given columns; all other columns are copied from the template."""
    columns = [str(field.column) for field in Job._meta.concrete_fields]
    selected = ", ".join(given.get(column, f"template.{column}") for column in columns)
    _run(
        f"INSERT INTO jobs_job ({', '.join(columns)}) {_DRAWN}{more} SELECT {selected} "
        "FROM keyed, jobs_job AS template WHERE template.id = %(template)s",
        values,
    )


def _count(begin: datetime.datetime, say: Callable[[str], None]) -> None:
    """Count hour by hour, as if a worker had counted all the time."""
    now = databases.clock("default")
    hour = statistics.floor(begin, HOUR)
    kept = statistics.floor(now - statistics.MINUTES_KEPT, HOUR)
    while hour < now:
        statistics.count("default", hour, min(hour + HOUR, statistics.floor(now, MINUTE)))
        if hour < kept:
            Statistic.objects.filter(length=60, begin__gte=hour, begin__lt=hour + HOUR)._raw_delete("default")
        hour += HOUR
        if hour.hour == 0 and hour.day % 5 == 0:
            say(f"counted until {hour:%Y-%m-%d}")
    Statistic.objects.filter(length=QUARTER.seconds, begin__lt=now - statistics.QUARTERS_KEPT)._raw_delete("default")


def _run(statement: str, values: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
