"""A job is there if and only if its transaction committed, and is published after that commit."""

from __future__ import annotations

import asyncio

import pytest
from celery import current_app
from celery.result import AsyncResult
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs import Task, publisher
from jobs.models import Job
from tests import tasks
from tests.concurrency import autocommit_off

pytestmark = pytest.mark.django_db(transaction=True)


class Rollback(Exception):
    pass


@pytest.fixture
def published(monkeypatch):
    """The ids that left, transaction by transaction; the broker itself is not needed here."""
    batches: list[list[str]] = []

    def publish(jobs, using, app, budget=None):
        assert not connection.in_atomic_block, "published inside a transaction"
        batches.append([str(job.pk) for job in jobs])
        return []

    monkeypatch.setattr(publisher, "publish", publish)
    return batches


def names() -> set[str]:
    return {args[0] for args in Job.objects.values_list("args", flat=True)}


def test_delay_returns_the_id_of_the_row(published):
    result = tasks.effect.delay("a")
    assert isinstance(result, AsyncResult)
    assert str(Job.objects.get().pk) == result.id
    assert published == [[result.id]]


def test_autocommit_publishes_at_once(published):
    result = tasks.effect.delay("a")
    assert published == [[result.id]]
    assert Job.objects.get().dispatched_at is not None


def test_several_jobs_of_a_transaction_leave_in_one_batch_after_its_commit(published):
    with transaction.atomic():
        ids = [tasks.effect.delay(str(n)).id for n in range(3)]
        assert published == []
    assert published == [ids]


def test_rollback_takes_the_job_along(published):
    with pytest.raises(Rollback), transaction.atomic():
        User.objects.create(username="u")
        tasks.effect.delay("a")
        raise Rollback
    assert not Job.objects.exists()
    assert published == []


def test_savepoint_rollback_of_the_first_of_several(published):
    with transaction.atomic():
        with pytest.raises(Rollback), transaction.atomic():
            tasks.effect.delay("dropped")
            raise Rollback
        kept = tasks.effect.delay("kept")
    assert names() == {"kept"}
    assert published == [[kept.id]]


def test_savepoint_rollback_of_the_last_of_several(published):
    with transaction.atomic():
        kept = tasks.effect.delay("kept")
        with pytest.raises(Rollback), transaction.atomic():
            tasks.effect.delay("dropped")
            raise Rollback
    assert names() == {"kept"}
    assert published == [[kept.id]]


def test_rollback_of_an_outer_savepoint_whose_inner_one_was_released(published):
    with transaction.atomic():
        with pytest.raises(Rollback), transaction.atomic():
            with transaction.atomic():
                tasks.effect.delay("dropped")
            tasks.effect.delay("dropped as well")
            raise Rollback
        with transaction.atomic():
            kept = tasks.effect.delay("kept")
        last = tasks.effect.delay("last")
    assert names() == {"kept", "last"}
    assert sorted(sum(published, [])) == sorted([kept.id, last.id])


def test_nested_atomics_publish_after_the_outermost_commit(published):
    with transaction.atomic():
        with transaction.atomic(), transaction.atomic(savepoint=False):
            inner = tasks.effect.delay("inner")
        assert published == []
        outer = tasks.effect.delay("outer")
    assert sorted(sum(published, [])) == sorted([inner.id, outer.id])


def test_durable_atomic(published):
    with transaction.atomic(durable=True):
        result = tasks.effect.delay("a")
    assert published == [[result.id]]


def test_a_failing_hook_of_the_project_does_not_stop_the_publish(published):
    def broken():
        raise RuntimeError("a hook of the project")

    with pytest.raises(RuntimeError), transaction.atomic():
        result = tasks.effect.delay("a")
        transaction.on_commit(broken)
    assert published == [[result.id]]


def test_autocommit_off_leaves_publishing_to_the_relay(published):
    connection.set_autocommit(False)
    try:
        tasks.effect.delay("a")
        connection.commit()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert published == []
    assert Job.objects.get().dispatched_at is None


def test_autocommit_off_and_rolled_back(published):
    with autocommit_off():
        tasks.effect.delay("a")
        connection.rollback()
    assert not Job.objects.exists()


def test_using_must_be_a_job_database(published):
    with pytest.raises(ValueError, match="JOBS\\['DATABASES'\\]"):
        tasks.effect.apply_async(("a",), using="elsewhere")
    assert tasks.effect.apply_async(("a",), using="default").id


def test_delay_on_commit_names(published):
    assert tasks.effect.delay_on_commit("a").id
    assert tasks.effect.apply_async_on_commit(("b",)).id
    assert names() == {"a", "b"}


def test_async_callers(published):
    async def view():
        first = await tasks.effect.adelay("a")
        second = await tasks.effect.aapply_async(("b",), countdown=60)
        return first, second

    first, second = asyncio.run(view())
    assert Job.objects.get(pk=first.id).state == "ready"
    assert Job.objects.get(pk=second.id).state == "scheduled"


@pytest.mark.core
def test_delay_many_is_one_insert_and_one_batch(published):
    with (
        transaction.atomic(),
        CaptureQueriesContext(
            connection,
        ) as queries,
    ):
        results = tasks.effect.delay_many([("a",), ["b"], {"key": "c", "note": "n"}])
    inserts = [q["sql"] for q in queries if q["sql"].startswith("INSERT")]
    assert len(inserts) == 1
    assert published == [[result.id for result in results]]
    assert Job.objects.get(pk=results[2].id).kwargs == {"key": "c", "note": "n"}


def test_delay_many_refuses_all_if_one_is_wrong(published):
    with pytest.raises(TypeError, match="item 1: .*missing"):
        tasks.effect.delay_many([("a",), ()])
    with pytest.raises(TypeError, match="item 0 must be"):
        tasks.effect.delay_many(["abc"])
    assert not Job.objects.exists()


def test_delay_many_of_nothing(published):
    assert tasks.effect.delay_many([]) == []


def test_many_rows_fit_the_databases_limits(published):
    results = tasks.noop.delay_many([(n,) for n in range(2500)])
    assert Job.objects.count() == 2500
    assert sum(len(batch) for batch in published) == 2500
    assert len({r.id for r in results}) == 2500


@pytest.mark.parametrize(
    ("options", "state"),
    [({"countdown": 60}, "scheduled"), ({"countdown": 0}, "ready"), ({"countdown": -5}, "ready"), ({}, "ready")],
)
def test_future_jobs_wait_in_the_database(published, options, state):
    result = tasks.effect.apply_async(("a",), **options)
    assert Job.objects.get().state == state
    assert published == ([[result.id]] if state == "ready" else [])


@pytest.mark.core
def test_one_insert_per_enqueue(published):
    tasks.effect.delay("warm")
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        tasks.effect.delay("a")
        statements = [q["sql"] for q in queries.captured_queries]
    assert len(statements) == 1
    assert statements[0].startswith("INSERT INTO")
    assert len(queries) == 1, "the happy path writes nothing after the commit"


def test_the_relay_is_told_when_the_broker_is_down(published, monkeypatch):
    monkeypatch.setattr(publisher, "publish", lambda jobs, using, app, budget=None: jobs)
    tasks.effect.delay("a")
    assert Job.objects.get().dispatched_at is None
    assert publisher.breaker.is_open
    # The breaker is open: not even tried, and the INSERT says so.
    tasks.effect.delay("b")
    assert Job.objects.filter(dispatched_at=None).count() == 2


def test_an_error_of_the_publish_never_reaches_the_caller(monkeypatch):
    def explode(*args, **kwargs):
        raise RuntimeError("anything")

    monkeypatch.setattr(publisher, "publish", explode)
    with transaction.atomic():
        tasks.effect.delay("a")
    assert Job.objects.get().state == "ready"


def test_unknown_settings_are_refused(settings):
    settings.JOBS = {"RELAI": 1}
    with pytest.raises(ImproperlyConfigured, match="RELAI"):
        tasks.effect.delay("a")


def test_excluded_tasks_stay_stock(settings):
    settings.JOBS = {**settings.JOBS, "EXCLUDE": ["tests.tasks.no*"]}
    tasks.noop.delay()
    assert not Job.objects.exists()


def test_tasks_of_another_base_class_are_untouched():
    assert not isinstance(current_app.tasks["tests.tasks.stock"], Task)
    assert isinstance(current_app.tasks["tests.tasks.based"], Task)
    assert current_app.tasks["celery.chord_unlock"].is_stock()
    tasks.stock.delay("a")
    assert not Job.objects.exists()
