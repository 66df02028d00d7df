"""What bypasses Django's cursor does so over psycopg2, too."""

from __future__ import annotations

import pytest
from django.db import DataError, connection, transaction

from jobs.store.sessions import has_begun, session_of
from tests.helpers import driver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _over_psycopg2():
    if not driver.is_plain():
        pytest.skip("PostgreSQL over psycopg2 only")


def test_it_is_the_session_of_a_connection_and_is_kept():
    session = session_of("default")
    assert type(session).__name__ == "PlainSession"
    assert session_of("default") is session
    assert session.backend == connection.connection.info.backend_pid
    connection.close()
    assert session_of("default") is not session


def test_it_takes_values_and_returns_rows_and_numbers():
    session = session_of("default")
    assert session.fetch("SELECT %(a)s + 1, %(b)s", {"a": 1, "b": "x"}) == [(2, "x")]
    assert session.execute("SET application_name = %(name)s", {"name": "it"}) == -1
    assert session.prepared("AS SELECT 1") == ""


def test_it_returns_the_first_value_as_text_also_json():
    session = session_of("default")
    assert session.send("""SELECT '{"a": [1]}'::json, 2""") == '{"a": [1]}'
    assert session.send("SELECT NULL") is None
    assert session.send("SELECT 1 WHERE false") is None
    text = "it's \\ 100%"
    assert session.send(f"SELECT {session.literal(text)}") == text


def test_its_errors_are_those_of_django():
    with pytest.raises(DataError), transaction.atomic():
        session_of("default").send("SELECT 1 / 0")


def test_it_is_part_of_the_transaction():
    with transaction.atomic():
        assert not has_begun(connection)
        session_of("default").send("SELECT 1")
        assert has_begun(connection)


def test_it_notifies():
    session_of("default").notify("jobs_test", ["it's", "a \\ text"])
