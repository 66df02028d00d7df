"""What a long line behind one limit costs each of its jobs: pages that its statements read, as the server tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
from django.db import Error, connection

from jobs.contrib.limits.claims import LimitedClaimer
from jobs.lifecycle import transitions
from jobs.models import Job
from tests.contrib.limits import tasks as bodies
from tests.contrib.limits.claiming import claim

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("node"),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="pages are counted there"),
]

SETTINGS = {
    "log_min_duration": "0",
    "log_analyze": "on",
    "log_buffers": "on",
    "log_format": "json",
    "log_timing": "off",
}


@contextmanager
def counted() -> Iterator[list[tuple[str, int]]]:
    """The pages that each statement of this session reads."""
    read: list[tuple[str, int]] = []

    def note(told: Any) -> None:
        text = told.message_primary or ""
        if "Query Text" in text:
            found = json.loads(text[text.index("{") :])
            plan = found["Plan"]
            read.append((found["Query Text"], plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))

    with connection.cursor() as cursor:
        try:
            cursor.execute("LOAD 'auto_explain'")
        except Error as exc:
            pytest.skip(f"this server does not tell: {exc}")
        for name, value in SETTINGS.items():
            cursor.execute(f"SET auto_explain.{name} = '{value}'")
        cursor.execute("SET client_min_messages = 'log'")
        raw: Any = connection.connection
        raw.add_notice_handler(note)
        try:
            yield read
        finally:
            raw.remove_notice_handler(note)
            cursor.execute("SET client_min_messages = 'warning'")
            cursor.execute("SET auto_explain.log_min_duration = -1")


def run(number: int, claimer: LimitedClaimer) -> list[int]:
    """Run so many jobs one after the other; returns how many pages each claim of one read."""
    with counted() as read:
        for _ in range(number):
            [job] = claim(1, claimer)
            assert transitions.succeed(job, None, 0.0)
            claimer.note_left([job])
    return [pages for sql, pages in read if "WITH first" in sql]


def is_held_open() -> bool:
    """Whether somebody's transaction keeps this server from forgetting what was changed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND xact_start < now() - interval '1 s' AND coalesce(backend_xid, backend_xmin) IS NOT NULL)"
        )
        return bool(cursor.fetchone()[0])


def test_what_waits_behind_a_limit_costs_the_next_job_nothing():
    """Guard: a claim passes neither what is held behind the next job, nor the index entries of what was before it."""
    for _ in range(3):
        bodies.one_of_a_customer.delay_many([("a",)] * 1000)
    claimer = LimitedClaimer()
    # It holds back all that is behind the first, each once.
    assert len(claim(10, claimer)) == 1
    assert Job.objects.filter(held=True).count() == 2999
    [job] = Job.objects.filter(state="running")
    assert transitions.succeed(job, None, 0.0)
    claimer.note_left([job])
    read = run(300, claimer)[-100:]
    if is_held_open():
        pytest.skip("somebody keeps a transaction open on this server")
    assert median(read) < 100, read
