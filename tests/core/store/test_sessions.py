"""The session that any driver of PostgreSQL has, whatever an extension puts in its place."""

from __future__ import annotations

import pytest
from django.db import DataError, connection, transaction

from jobs.store.postgresql import json_literal
from jobs.store.sessions import Session, has_begun, literal, quoted, session_of
from tests.helpers import driver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def session():
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    connection.ensure_connection()
    return Session(connection)


def test_a_connection_keeps_its_session(session):
    kept = session_of("default")
    assert isinstance(kept, Session)
    assert session_of("default") is kept
    assert session.backend == kept.backend == connection.connection.info.backend_pid
    connection.close()
    assert session_of("default") is not kept


def test_it_takes_values_and_returns_rows_and_numbers(session):
    assert session.fetch("SELECT %(a)s + 1, %(b)s", {"a": 1, "b": "x"}) == [(2, "x")]
    assert session.execute("SET application_name = %(name)s", {"name": "it"}) == -1


def test_it_returns_the_first_value_of_statements_in_which_values_are_literals(session):
    text = "it's \\ 100%"
    assert session.send(f"SELECT 1; SELECT {quoted(text)}, 2") == text
    assert session.send("SELECT 1; SELECT 2") == "2"
    assert session.send(f"SELECT {json_literal([text])}::json ->> 0") == text
    assert session.fetch(f"SELECT {literal(text)}, %s", [1]) == [(text, 1)]
    assert session.send("SELECT NULL") is None
    assert session.send("SELECT 1 WHERE false") is None


def test_its_errors_are_those_of_django(session):
    with pytest.raises(DataError), transaction.atomic():
        session.send("SELECT 1 / 0")


def test_it_is_part_of_the_transaction(session):
    with transaction.atomic():
        assert not has_begun(connection)
        session.send("SELECT 1")
        assert has_begun(connection)


def test_what_is_sent_together_is_one_transaction(session):
    """A lock that the first statement takes is held while the second one runs."""
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    for each in (session, session_of("default")):
        assert each.send(f"SELECT pg_advisory_xact_lock(7); {locks}") == "1"
        assert each.send(locks) == "0"


def test_it_notifies(session):
    heard: list[str] = []
    if driver.IS_3:
        session.raw.add_notify_handler(lambda note: heard.append(note.payload))
    session.send("LISTEN jobs_test")
    session.notify("jobs_test", ["it's", "a \\ text"])
    session.send("UNLISTEN jobs_test")
    assert heard + ([] if driver.IS_3 else [note.payload for note in session.raw.notifies]) == ["it's", "a \\ text"]
