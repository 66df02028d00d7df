"""guard(): the freshest row, locked until the transaction ends."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from jobs import Busy, guard
from jobs.models import Job
from tests.contrib.guards import tasks
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.harness import deliver
from tests.helpers.servers import wait_for
from tests.models import Order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def order(db):
    return Order.objects.create(key="a", job=uuid.uuid4())


@pytest.mark.database
def test_it_waits_and_then_sees_what_the_other_one_wrote(order):
    def add():
        with transaction.atomic(), guard(Order, pk=order.pk) as row:
            row.key += "b"
            row.save()

    with open_transaction(add):
        second = Elsewhere(add)
        wait_for(somebody_waits, 10, "the second one waits")
        assert not second.outcome
    second.result()
    assert Order.objects.get().key == "abb"


@pytest.mark.database
def test_two_at_once_lose_nothing(order):
    """Each reads, and writes what it read and one more."""

    Order.objects.update(key="0")

    def count():
        for _ in range(20):
            with transaction.atomic(), guard(Order, pk=order.pk) as row:
                row.key = str(int(row.key) + 1)
                row.save()

    both = [Elsewhere(count), Elsewhere(count)]
    assert [one.result() for one in both] == [None, None]
    assert Order.objects.get().key == "40"


def test_a_deferred_transaction_on_sqlite_takes_the_write_lock(order):
    if connection.vendor != "sqlite":
        pytest.skip("SQLite only")
    options = connection.settings_dict["OPTIONS"]
    before = options.pop("transaction_mode")
    connection.close()
    try:
        with transaction.atomic(), guard(Order, pk=order.pk) as row:
            with (
                closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0)) as other,
                pytest.raises(sqlite3.OperationalError, match="locked"),
            ):
                other.execute("BEGIN IMMEDIATE")
            writer = Elsewhere(lambda: Order.objects.update(key="b"))
            row.key = "c"
            row.save()
        assert writer.result() == 1
    finally:
        options["transaction_mode"] = before
        connection.close()
    assert Order.objects.get().key == "b"


@pytest.mark.database
def test_a_queryset_is_locked_in_the_order_of_its_keys(order):
    Order.objects.create(key="b", job=uuid.uuid4())
    with (
        transaction.atomic(),
        CaptureQueriesContext(connection) as queries,
        guard(Order.objects.order_by("-key")) as rows,
    ):
        assert [row.key for row in rows] == ["a", "b"]
    if connection.vendor == "postgresql":
        assert 'ORDER BY "tests_order"."id" ASC FOR UPDATE' in queries.captured_queries[0]["sql"]


@pytest.mark.database
def test_nowait_and_skip_locked(order):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    with open_transaction(lambda: Order.objects.select_for_update().get(key="a")):
        with pytest.raises(Busy, match=r"tests\.Order"), transaction.atomic(), guard(Order, key="a", nowait=True):
            pass
        with transaction.atomic(), guard(Order, key="a", skip_locked=True) as row:
            assert row is None
        with transaction.atomic(), guard(Order.objects.all(), skip_locked=True) as rows:
            assert rows == []


@pytest.mark.database
def test_it_costs_one_query(order):
    with transaction.atomic(), CaptureQueriesContext(connection) as queries, guard(Order, pk=order.pk):
        pass
    assert len(queries) == 1


@pytest.mark.database
@pytest.mark.parametrize(("task", "state"), [("guards", "failed"), ("guards_patiently", "scheduled")])
def test_a_missing_row_is_final_or_retried_as_the_task_says(node, task, state):
    deliver(getattr(tasks, task).delay(0))
    job = Job.objects.get()
    assert job.state == state
    assert job.error["type"] == "DoesNotExist"
    assert "tests.Order" in job.error["message"]


def test_it_needs_a_transaction(order):
    with pytest.raises(TransactionManagementError, match="transaction.atomic"), guard(Order, pk=order.pk):
        pass


def test_mistakes_are_told_with_the_cure(order):
    with transaction.atomic():
        with pytest.raises(TypeError, match=r"guard\(Order, pk="), guard(order):
            pass
        with pytest.raises(TypeError, match="filter the queryset"), guard(Order.objects.all(), pk=1):
            pass
        with pytest.raises(TypeError, match="a model and a lookup"), guard("orders"):
            pass
        Order.objects.create(key="b", job=uuid.uuid4())
        with pytest.raises(Order.MultipleObjectsReturned, match="pass a queryset"), guard(Order):
            pass


def test_a_slice_keeps_its_order(order):
    newest = Order.objects.create(key="b", job=uuid.uuid4())
    with transaction.atomic(), guard(Order.objects.order_by("-pk")[:1]) as rows:
        assert [row.pk for row in rows] == [newest.pk]
