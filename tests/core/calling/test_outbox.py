"""A job is there if and only if its transaction committed, and workers are notified after that commit."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import uuid

import celery
import pytest
from celery import current_app
from celery.result import AsyncResult
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import Task
from jobs.conf import is_ours
from jobs.lifecycle import wakeups
from jobs.models import Job
from tests import tasks
from tests.helpers import driver
from tests.helpers.concurrency import autocommit_off, cut
from tests.helpers.harness import effects
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db(transaction=True)


class Rollback(Exception):
    pass


@pytest.fixture
def notified(monkeypatch):
    """The queues that were notified for, commit by commit."""
    rings: list[set[str]] = []

    def note(using, queues):
        assert not connection.in_atomic_block, "notified inside a transaction"
        if queues:
            rings.append(set(queues))

    monkeypatch.setattr(wakeups, "notify", note)
    return rings


def queue() -> str:
    return current_app.conf.task_default_queue


def names() -> set[str]:
    return {args[0] for args in Job.objects.values_list("args", flat=True)}


def test_delay_returns_the_id_of_the_row():
    result = tasks.effect.delay("a")
    assert isinstance(result, AsyncResult)
    assert str(Job.objects.get().pk) == result.id


def test_autocommit_rings_at_once(notified):
    tasks.effect.delay("a")
    assert notified == [{queue()}]


def test_several_jobs_of_a_transaction_are_one_ring_after_its_commit(notified):
    with transaction.atomic():
        for name in (queue(), "mail", queue()):
            tasks.effect.apply_async(("a",), queue=name)
        assert notified == []
    assert notified == [{queue(), "mail"}]


def test_rollback_takes_the_job_along(notified):
    with pytest.raises(Rollback), transaction.atomic():
        User.objects.create(username="u")
        tasks.effect.delay("a")
        raise Rollback
    assert not Job.objects.exists()
    assert notified == []


def test_savepoint_rollback_of_the_first_of_several(notified):
    with transaction.atomic():
        with pytest.raises(Rollback), transaction.atomic():
            tasks.effect.delay("dropped")
            raise Rollback
        tasks.effect.delay("kept")
    assert names() == {"kept"}
    assert notified == [{queue()}]


def test_savepoint_rollback_of_the_last_of_several(notified):
    with transaction.atomic():
        tasks.effect.delay("kept")
        with pytest.raises(Rollback), transaction.atomic():
            tasks.effect.apply_async(("dropped",), queue="mail")
            raise Rollback
    assert names() == {"kept"}
    assert notified == [{queue()}]


def test_rollback_of_an_outer_savepoint_whose_inner_one_was_released(notified):
    with transaction.atomic():
        with pytest.raises(Rollback), transaction.atomic():
            with transaction.atomic():
                tasks.effect.delay("dropped")
            tasks.effect.delay("dropped as well")
            raise Rollback
        with transaction.atomic():
            tasks.effect.apply_async(("kept",), queue="mail")
        tasks.effect.delay("last")
    assert names() == {"kept", "last"}
    assert set().union(*notified) == {queue(), "mail"}


def test_nested_atomics_ring_after_the_outermost_commit(notified):
    with transaction.atomic():
        with transaction.atomic(), transaction.atomic(savepoint=False):
            tasks.effect.apply_async(("inner",), queue="mail")
        tasks.effect.delay("outer")
        assert notified == []
    assert set().union(*notified) == {queue(), "mail"}


def test_durable_atomic(notified):
    with transaction.atomic(durable=True):
        tasks.effect.delay("a")
    assert notified == [{queue()}]


def test_a_failing_hook_of_the_project_does_not_stop_the_ring(notified):
    def broken():
        raise RuntimeError("a hook of the project")

    with pytest.raises(RuntimeError), transaction.atomic():
        tasks.effect.delay("a")
        transaction.on_commit(broken)
    assert notified == [{queue()}]


def test_autocommit_off_leaves_the_job_to_a_poll(notified):
    """Only the caller knows of the commit."""
    with autocommit_off():
        tasks.effect.delay("a")
        connection.commit()
    assert notified == []
    assert Job.objects.get().state == "ready"


def test_autocommit_off_and_rolled_back():
    with autocommit_off():
        tasks.effect.delay("a")
        connection.rollback()
    assert not Job.objects.exists()


def test_using_must_be_a_job_database():
    with pytest.raises(ValueError, match="JOBS\\['DATABASES'\\]"):
        tasks.effect.apply_async(("a",), using="elsewhere")
    assert tasks.effect.apply_async(("a",), using="default").id


def test_delay_on_commit_names():
    assert tasks.effect.delay_on_commit("a").id
    assert tasks.effect.apply_async_on_commit(("b",)).id
    assert names() == {"a", "b"}


def test_async_callers():
    async def view():
        first = await tasks.effect.adelay("a")
        second = await tasks.effect.aapply_async(("b",), countdown=60)
        return first, second

    first, second = asyncio.run(view())
    assert Job.objects.get(pk=first.id).state == "ready"
    assert Job.objects.get(pk=second.id).state == "scheduled"


@pytest.mark.core
def test_delay_many_is_one_statement_and_one_ring(notified):
    with (
        transaction.atomic(),
        CaptureQueriesContext(
            connection,
        ) as queries,
    ):
        results = tasks.effect.delay_many([("a",), ["b"], {"key": "c", "note": "n"}])
        statements = [q["sql"] for q in queries.captured_queries]
    assert len(statements) == 1
    assert statements[0].startswith(("COPY", "INSERT INTO"))
    assert notified == [{queue()}]
    assert Job.objects.get(pk=results[2].id).kwargs == {"key": "c", "note": "n"}


def test_delay_many_refuses_all_if_one_is_wrong():
    with pytest.raises(TypeError, match="item 1: .*missing"):
        tasks.effect.delay_many([("a",), ()])
    with pytest.raises(TypeError, match="item 0 must be"):
        tasks.effect.delay_many(["abc"])
    assert not Job.objects.exists()


def test_delay_many_of_nothing():
    assert tasks.effect.delay_many([]) == []


def test_many_rows_fit_the_databases_limits():
    results = tasks.noop.delay_many([(n,) for n in range(2500)])
    assert {str(key) for key in Job.objects.values_list("pk", flat=True)} == {result.id for result in results}
    assert len(results) == 2500


@pytest.mark.parametrize(
    ("options", "state"),
    [({"countdown": 60}, "scheduled"), ({"countdown": 0}, "ready"), ({"countdown": -5}, "ready"), ({}, "ready")],
)
def test_future_jobs_wait_in_the_database(notified, options, state):
    tasks.effect.apply_async(("a",), **options)
    assert Job.objects.get().state == state
    assert notified == ([{queue()}] if state == "ready" else [])


@pytest.mark.core
def test_one_insert_per_enqueue(notified):
    tasks.effect.delay("warm")
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        tasks.effect.delay("a")
        statements = [q["sql"] for q in queries.captured_queries]
    assert len(statements) == 1
    assert statements[0].startswith("INSERT INTO")
    assert len(queries) == 1, "the happy path writes nothing after the commit"


def test_an_error_after_the_commit_never_reaches_the_caller(monkeypatch):
    def explode(*args, **kwargs):
        raise RuntimeError("anything")

    monkeypatch.setattr(wakeups, "notify", explode)
    with transaction.atomic():
        tasks.effect.delay("a")
    assert Job.objects.get().state == "ready"


@pytest.mark.database
@pytest.mark.parametrize("autocommit", [True, False])
def test_the_thousandth_call_of_a_connection_keeps_what_the_first_one_keeps(autocommit):
    """A statement that comes often is prepared."""
    calls = [(f"a\tb\\c'd\n{n}", {"é": ["%s", None, 1.5]}) for n in range(12)]
    with contextlib.nullcontext() if autocommit else transaction.atomic():
        results = [tasks.noop.apply_async(args, priority=n % 3) for n, args in enumerate(calls)]
    for n, (result, args) in enumerate(zip(results, calls, strict=True)):
        job = Job.objects.get(pk=result.id)
        assert (job.args, job.priority, job.state) == (list(args), n % 3, "ready")


@pytest.mark.database
def test_a_call_in_a_pipeline_of_the_driver_is_recorded():
    if connection.vendor != "postgresql":
        pytest.skip("no pipelines")
    driver.prepares()
    for number in range(10):
        tasks.noop.delay(number)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        with connection.connection.pipeline():
            tasks.noop.delay("a")
    assert Job.objects.count() == 11


@pytest.mark.database
def test_a_call_in_a_broken_transaction_is_refused():
    for _ in range(10):
        tasks.noop.delay()
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            tasks.noop.delay()


#: What a call may say of itself, and several of them at once.
SAID = {
    "nothing": {},
    "priority": {"priority": 3},
    "zero": {"priority": 0},
    "queue": {"queue": "mail"},
    "later": {"countdown": 3600},
    "expires": {"expires": datetime.datetime(2031, 1, 2, tzinfo=datetime.UTC)},
    "headers": {"headers": {"a\tb": "\\N\n'\u2028"}},
    "retries": {"retries": 2},
    "line of calls": {"root_id": str(uuid.uuid4()), "parent_id": str(uuid.uuid4())},
    "limits": {"time_limit": 5, "soft_time_limit": 4, "shadow": "s", "ignore_result": True},
    "link": {"link": tasks.noop.si(1), "link_error": tasks.noop.si(2)},
}
WHEN = {"id", "run_at", "expires_at"}


@pytest.mark.database
@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("args", [(), ("\\N", "a\tb\r\nc\\", "''", '"', None, 1e16, -0.0, {"b": 1, "a": [[], {}]})])
def test_many_calls_keep_what_one_call_keeps(name, args):
    one = tasks.noop.apply_async(args, **SAID[name])
    many = tasks.noop.delay_many([args, args], **SAID[name])
    [single, *others] = (Job.objects.filter(pk=result.id).values().get() for result in (one, *many))
    assert len(others) == 2
    for other in others:
        for field in single.keys() - WHEN:
            assert (field, repr(other[field])) == (field, repr(single[field]))
        for field in WHEN - {"id"}:
            apart = (other[field] or timezone.now()) - (single[field] or timezone.now())
            assert abs(apart) < datetime.timedelta(seconds=10)
        assert (other["expires_at"] is None) == (single["expires_at"] is None)
    assert json.dumps(single["args"]) == json.dumps(list(args)), "in the order, and to the sign, in which it was given"


def test_excluded_tasks_stay_stock(settings):
    settings.JOBS = {**settings.JOBS, "EXCLUDE": ["tests.tasks.no*"]}
    tasks.noop.delay()
    assert not Job.objects.exists()


def test_tasks_of_another_base_class_are_untouched():
    assert not isinstance(current_app.tasks["tests.tasks.stock"], Task)
    assert isinstance(current_app.tasks["tests.tasks.based"], Task)
    assert not is_ours(current_app.tasks["celery.chord_unlock"])
    tasks.stock.delay("a")
    assert not Job.objects.exists()


def test_a_call_in_a_running_event_loop_names_the_cure():
    async def view():
        tasks.effect.delay("a")

    with pytest.raises(SynchronousOnlyOperation, match=r"tests.tasks.effect .* adelay"):
        asyncio.run(view())


@pytest.mark.parametrize("how", ["eager", "stock"])
def test_on_commit_waits_for_the_commit_also_where_no_row_is_made(how, monkeypatch, settings, request):
    if how == "eager":
        current_app.conf.task_always_eager = True
        request.addfinalizer(lambda: current_app.conf.update(task_always_eager=False))
    else:
        settings.JOBS = {**settings.JOBS, "EXCLUDE": ["tests.tasks.effect"]}
        monkeypatch.setattr(celery.Task, "apply_async", lambda self, args, *more, **options: self.run(*args))
    with transaction.atomic():
        assert tasks.effect.delay_on_commit("a") is None
        assert tasks.effect.apply_async_on_commit(("b",)) is None
        assert not effects()
    assert effects() == {"a": 1, "b": 1}


@pytest.mark.database
@pytest.mark.parametrize("how", ["one", "many", "unique"])
def test_a_process_without_requests_survives_the_loss_of_its_connection(how):
    """Nobody closes a dead connection between two requests there."""
    if connection.vendor != "postgresql":
        pytest.skip("no connection to lose")
    for number in range(10):
        # The first ones are not prepared, the others are.
        tasks.effect.delay(f"before {number}")
        cut()
        if how == "unique":
            tasks.summary.delay(f"day {number}")
        else:
            tasks.effect.delay(number) if how == "one" else tasks.effect.delay_many([(number,), (number,)])
    assert Job.objects.count() == (30 if how == "many" else 20)


@pytest.mark.database
def test_an_id_that_a_job_had_is_not_taken_for_that_of_the_call_whose_connection_was_lost():
    if connection.vendor != "postgresql":
        pytest.skip("no connection to lose")
    earlier = make("succeeded")
    assert earlier.pk.version == 7
    cut()
    with pytest.raises(IntegrityError):
        tasks.effect.apply_async(("a",), task_id=str(earlier.pk))
    assert Job.objects.count() == 1


@pytest.mark.database
def test_a_transaction_does_not_survive_the_loss_of_its_connection():
    if connection.vendor != "postgresql":
        pytest.skip("no connection to lose")
    with pytest.raises((OperationalError, InterfaceError)), transaction.atomic():
        tasks.effect.delay("a")
        cut()
        tasks.effect.delay("b")
    connection.close()
    assert not Job.objects.exists()
