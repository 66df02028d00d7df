"""A savepoint at the very beginning of a run's transaction is not sent, and means the same."""

from __future__ import annotations

import pytest
from celery import shared_task
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from jobs import store
from jobs.contrib.savepoints.store import spare_savepoints
from jobs.models import Node
from tests.helpers.harness import deliver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _spared():
    if not hasattr(connections["default"], "_jobs_spared"):
        spare_savepoints(store.of("default"))


def make(name: str) -> None:
    Node.objects.create(hostname=name, pid=1)


def made() -> set[str]:
    return set(Node.objects.values_list("hostname", flat=True))


def test_nothing_is_sent_for_it():
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    with CaptureQueriesContext(connection) as captured, transaction.atomic(), transaction.atomic():
        with transaction.atomic():
            make("a")
        with transaction.atomic():
            make("b")
    sent = [query["sql"].split()[0] for query in captured.captured_queries]
    assert sent == ["BEGIN", "INSERT", "SAVEPOINT", "INSERT", "RELEASE", "COMMIT"]
    assert made() == {"a", "b"}


@shared_task
def nests():
    with transaction.atomic():
        make("a")


def test_a_run_spares_it(node):
    """Without the hooks that the tests here have set by hand."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    job = nests.delay()
    for name in ("_jobs_spared", "_savepoint", "_savepoint_rollback", "_savepoint_commit"):
        vars(connections["default"]).pop(name, None)
    with CaptureQueriesContext(connection) as captured:
        assert deliver(job)[0] == "SUCCESS"
    sent = [query["sql"].split()[0] for query in captured.captured_queries]
    assert "INSERT" in sent
    assert "SAVEPOINT" not in sent


def test_what_it_held_is_rolled_back_and_nothing_else():
    hooks = []
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            make("lost")
            transaction.on_commit(lambda: hooks.append("lost"))
            with transaction.atomic():
                make("lost, too")
            raise ZeroDivisionError
        make("kept")
        transaction.on_commit(lambda: hooks.append("kept"))
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            make("lost again")
            raise ZeroDivisionError
    assert made() == {"kept"}
    assert hooks == ["kept"]


def test_an_error_of_the_database_in_it_leaves_a_sound_transaction():
    with transaction.atomic():
        with pytest.raises(Exception, match="nowhere"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM nowhere")
        make("after it")
    assert made() == {"after it"}


def test_savepoints_by_hand():
    with transaction.atomic():
        first = transaction.savepoint()
        make("lost")
        transaction.savepoint_rollback(first)
        make("lost, too")
        transaction.savepoint_rollback(first)
        make("kept")
        transaction.savepoint_commit(first)
    assert made() == {"kept"}


def test_an_id_that_was_never_released_may_come_again():
    connection.ensure_connection()
    connection.clean_savepoints()
    with transaction.atomic():
        transaction.savepoint()
    connection.close()
    connection.clean_savepoints()
    with transaction.atomic():
        make("kept")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            make("lost")
            raise ZeroDivisionError
    assert made() == {"kept"}
