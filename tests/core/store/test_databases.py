"""Connections that a body, or a time limit, left in no good state; and servers that cannot be reached."""

from __future__ import annotations

import pytest
from celery import current_app
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import NO_DB_ALIAS

from jobs import store
from jobs.lifecycle.worker_state import worker_state
from jobs.store import databases
from jobs.store.databases import SideDatabase
from jobs.worker.runner import Runner
from tests import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def other():
    """A connection to another database, which is kept open."""
    # Django's tests refuse to open a database that they did not make, unless it goes by this name.
    other = connections["other"] = connections[NO_DB_ALIAS] = connection.copy(NO_DB_ALIAS)
    connections.settings["other"] = connections.settings["default"]
    other.ensure_connection()
    other.close_at = None
    yield other
    other.close()
    del connections["other"], connections[NO_DB_ALIAS], connections.settings["other"]


def test_a_query_that_a_time_limit_left_on_another_connection_harms_no_other_job(other):
    if not hasattr(other.connection, "pgconn"):
        pytest.skip("only psycopg 3 goes on with a query")
    other.connection.pgconn.send_query(b"SELECT pg_sleep(60)")
    databases.tidy("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT 42")
        assert cursor.fetchone()[0] == 42


def test_a_connection_that_grew_old_while_the_process_was_idle_is_closed_before_a_body(other, node):
    other.close_at = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_run_all", lambda self, jobs: seen.append(other.connection))
        seen: list[object] = []
        tasks.noop.delay()
        worker_state.queues = [current_app.conf.task_default_queue]
        assert Runner(current_app._get_current_object(), "here").run_batch()
    assert seen == [None]


def test_a_backend_that_cannot_say_how_to_connect_is_away(monkeypatch):
    """It fetches a password, say."""

    def fails(self):
        raise RuntimeError("no token")

    own = SideDatabase()
    with monkeypatch.context() as patch:
        patch.setattr(type(connections["default"]), "get_connection_params", fails)
        patch.setattr(databases, "in_test", lambda alias: False)
        with pytest.raises(OperationalError, match="no token"), own.cursor():
            pass
    assert own.seconds() > 0
    own.close()


def test_an_error_of_the_server_keeps_its_cause():
    """The driver's error has the code, by which the kinds of errors are told apart."""
    cause = ConnectionError("the driver's")

    def fails(self):
        raise OperationalError("away") from cause

    own = SideDatabase()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(connections["default"]), "ensure_connection", fails)
        patch.setattr(databases, "in_test", lambda alias: False)
        with pytest.raises(OperationalError) as told, own.cursor():
            pass
    assert told.value.__cause__ is cause


@pytest.mark.parametrize("seconds", [0.0001, 30 * 86400.0])
def test_a_wait_is_bounded_however_short_or_long_it_may_be(seconds):
    """In whole milliseconds a short one would be 0, which has no end; a long one has more than 32 bits."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's own")
    with transaction.atomic(), store.of("default").bounded(seconds), connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone()[0] != "0"
    with transaction.atomic():
        assert store.of("default").insert_marker("k", "once", "", None, None, seconds)
