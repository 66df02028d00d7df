"""Many calls are one COPY on PostgreSQL, and nobody notices but by the time that it takes."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.store import databases
from tests import tasks
from tests.helpers.concurrency import cut

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _copies():
    if connection.vendor != "postgresql":
        pytest.skip("COPY is PostgreSQL's")


def test_delay_many_is_one_copy():
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        tasks.effect.delay_many([("a",), ["b"], {"key": "c\\\t", "note": "n\n"}])
        [statement] = [query["sql"] for query in queries.captured_queries]
    assert statement.startswith("COPY jobs_job")
    assert {"key": "c\\\t", "note": "n\n"} in Job.objects.values_list("kwargs", flat=True)


def test_errors_of_delay_many_are_djangos():
    """Else no ``except`` of a project catches them, and a connection that the server ended is not made anew."""
    connection.ensure_connection()
    cut()
    assert len(tasks.effect.delay_many([(number,) for number in range(1001)])) == Job.objects.count() == 1001
    # With each driver they come in one transaction: if the answer is lost, the first one stands for all.
    assert len(databases.ask("default", "SELECT DISTINCT xmin::text FROM jobs_job")) == 1
    with pytest.raises(OperationalError), transaction.atomic():
        cut()
        tasks.effect.delay_many([("a",), ("b",)])
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            tasks.effect.delay_many([("a",), ("b",)])
    assert Job.objects.count() == 1001
