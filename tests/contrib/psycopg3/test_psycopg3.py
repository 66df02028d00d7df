"""What psycopg 3 does faster: statements are prepared, and one message has several of them."""

from __future__ import annotations

import pytest
from django.db import DataError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from jobs import store
from jobs.contrib.psycopg3 import session
from jobs.contrib.psycopg3.session import Preparing
from jobs.contrib.psycopg3.store import OFTEN
from jobs.lifecycle import transitions
from jobs.lifecycle.claims import Claimer
from jobs.models import Job
from jobs.store.sessions import has_begun, session_of
from tests import tasks
from tests.helpers import driver
from tests.helpers.rows import fill

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _over_psycopg3():
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    driver.prepares()


def prepared() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return [statement for [statement] in cursor.fetchall()]


def test_the_insert_of_a_connection_that_calls_often_is_prepared():
    for _ in range(OFTEN):
        tasks.noop.delay()
    assert not any("INSERT INTO jobs_job" in each for each in prepared())
    tasks.noop.delay()
    assert any("INSERT INTO jobs_job" in each for each in prepared())
    with CaptureQueriesContext(connection) as queries:
        tasks.noop.delay()
    assert "INSERT INTO" in queries[0]["sql"], "whoever looks sees it"
    assert Job.objects.count() == OFTEN + 2


def test_a_new_connection_asks_for_nothing_that_it_does_not_need(monkeypatch):
    """Many projects open a connection for each request."""
    connections["default"].close()
    vars(connections["default"]).pop("_jobs_session", None)
    with transaction.atomic():
        tasks.noop.delay()
        assert not hasattr(connections["default"], "_jobs_session"), "a call is one statement"
    with driver.executed(monkeypatch) as asked:
        connections["default"].close()
        session_of("default").fetch("SELECT 1")
    assert not [sql for sql in asked if "DISCARD" in sql], "it has no plans yet"


def test_the_transaction_that_it_begins_has_the_isolation_of_the_connection():
    connection.ensure_connection()
    raw, before = connection.connection, connection.connection.isolation_level
    raw.isolation_level = driver.psycopg.IsolationLevel.SERIALIZABLE
    try:
        with transaction.atomic():
            assert session_of("default").send("SHOW transaction_isolation") == "serializable"
    finally:
        raw.isolation_level = before


def test_it_begins_the_transaction_that_django_has_announced():
    with transaction.atomic():
        assert session_of("default").send("SELECT 1; SELECT 'a'") == "a"
        assert has_begun(connection)
        session_of("default").send("SET LOCAL application_name = 'mine'")
    assert session_of("default").send("SHOW application_name") != "mine"
    with pytest.raises(DataError), transaction.atomic():
        session_of("default").send("SELECT 1 / 0")
    assert not has_begun(connection)


def test_a_connection_of_a_pool_has_one_session_and_who_uses_it_at_the_moment():
    """Django's pools hand it on: the errors are raised by the one of Django's connections that has it now."""
    mine, other = connections["default"], connections.create_connection("default")
    first = session_of("default")
    assert isinstance(first, Preparing)
    other.connection = mine.connection
    connections["default"] = other
    try:
        assert session_of("default") is first
        assert first.connection is other
    finally:
        connections["default"] = mine
    assert session_of("default") is first
    assert first.connection is mine


def test_a_plan_that_was_made_for_an_empty_table_is_given_up(node, monkeypatch):
    """The server keeps it until the statistics are renewed, which takes a minute or longer."""

    def claim_and_succeed() -> list[str]:
        [job] = Claimer().claim("default", "celery", node.pk, 1)
        with transaction.atomic():
            Job.objects.filter(pk=node.pk).exists()
            assert transitions.succeed(job, None, 0.1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, cardinality(parameter_types) FROM pg_prepared_statements")
            plans = []
            for name, number in cursor.fetchall():
                cursor.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * number)})")
                plans.append("\n".join(row[0] for row in cursor.fetchall()))
        return plans

    live = "jobs_job_live" if store.of("default").is_divided else "jobs_job"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {live} SET (autovacuum_enabled = false)")
        cursor.execute("VACUUM ANALYZE jobs_job")
    try:
        monkeypatch.setattr(session, "PLANNED", 3600.0)
        fill("ready", 10)
        for _ in range(10):
            before = claim_and_succeed()
        fill("ready", 20_000)
        assert claim_and_succeed() == before
        assert len(before) == 2
        assert all("Seq Scan on jobs_job" in plan for plan in before)
        session_of("default")._plan_at = 0.0
        assert not any("Seq Scan on jobs_job" in plan for plan in claim_and_succeed())
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {live} RESET (autovacuum_enabled)")
