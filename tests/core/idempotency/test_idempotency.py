"""Markers: one committed effect per key, whoever asks for it, and whoever dies meanwhile."""

from __future__ import annotations

import enum
import inspect
import time

import pytest
from celery import current_app
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from jobs import Snooze, Task, store
from jobs.idempotency import markers
from jobs.idempotency.keys import KeyTemplate, fingerprint
from jobs.lifecycle import transitions
from jobs.models import Job, Marker
from jobs.store.base import Store
from tests import tasks
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.deliveries import deliver_fifty_times
from tests.helpers.harness import deliver, effects
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def leave_marker(user_id=5):
    """As the run of another job of the same key does."""
    other = Job.objects.create(
        task="tests.tasks.welcomes", args=[user_id], queue="", state="succeeded", finished_at=Now(), result="theirs"
    )
    arguments = fingerprint(
        tasks.welcomes.name, tasks.welcomes.key_templates["idempotency_key"].signature, [user_id], {}
    )
    assert markers.take(f"welcome:{user_id}", Marker.Kind.TASK, "default", other.pk, arguments)


# idempotency_key=


@pytest.mark.database
def test_the_second_job_of_a_key_replays_the_first(node):
    one, two = tasks.welcomes.delay(5), tasks.welcomes.delay(user_id=5)
    assert deliver(one) == ("SUCCESS", "welcome 5")
    assert deliver(two) == ("SUCCESS", "welcome 5")
    job = Job.objects.get(pk=two.id)
    assert (job.state, job.result, str(job.replay_of)) == ("succeeded", "welcome 5", one.id)
    assert effects() == {"welcome:5": 1}
    marker = Marker.objects.get()
    assert (marker.key, str(marker.job)) == ("welcome:5", one.id)
    assert marker.expires_at > marker.created_at
    assert deliver(tasks.welcomes.delay(6))[0] == "SUCCESS"


def test_the_key_is_there_from_the_call_on(node):
    assert Job.objects.get(pk=tasks.welcomes.delay(5).id).idempotency_key == "welcome:5"
    plain = Job.objects.get(pk=tasks.noop.delay().id)
    assert plain.idempotency_key == str(plain.pk)


@pytest.mark.database
def test_a_run_that_failed_leaves_no_marker(node):
    one, two = tasks.welcomes.delay(5, how="fails"), tasks.welcomes.delay(5)
    assert deliver(one)[0] == "FAILURE"
    assert not Marker.objects.exists()
    assert deliver(two)[0] == "SUCCESS"
    assert effects() == {"welcome:5": 1}


def test_other_arguments_under_the_same_key_are_a_mistake(node):
    deliver(tasks.welcomes.delay(5))
    result = tasks.welcomes.delay(5, how="politely")
    deliver(result)
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.error["type"], job.retries) == ("failed", "IdempotencyMismatch", 0)
    assert "other arguments" in job.error["message"]


def test_a_result_that_cannot_be_replayed_fails_and_says_so(node):
    result = tasks.welcomes.delay(5, how="returns an object")
    deliver(result)
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.error["type"]) == ("failed", "TypeError")
    assert "has to be JSON" in job.error["message"]
    assert effects() == {}


@pytest.mark.database
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls-back"])
def test_a_duplicate_waits_for_the_run_that_has_the_marker(node, commits):
    result = tasks.welcomes.delay(5)
    with open_transaction(leave_marker, commits):
        duplicate = Elsewhere(lambda: deliver(result))
        wait_for(somebody_waits, 10, "the duplicate waits")
        assert not duplicate.outcome
    assert duplicate.result() == ("SUCCESS", "theirs" if commits else "welcome 5")
    assert effects() == ({} if commits else {"welcome:5": 1})
    assert Job.objects.get(pk=result.id).lease == 1


@pytest.mark.database
def test_a_duplicate_does_not_wait_for_ever(node, settings):
    """It gives its place back, and uses no attempt."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer: the claim itself waits")
    settings.JOBS = {**settings.JOBS, "MARKER_WAIT": 0.3}
    result = tasks.welcomes.delay(5)
    with open_transaction(leave_marker):
        assert deliver(result)[0] == "IGNORED"
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.retries, job.snoozes, job.error["type"]) == ("scheduled", 0, 1, "Busy")
    assert "welcome:5" in job.error["message"]
    assert job.run_at > job.started_at


@pytest.mark.database
def test_repeatable_read(node):
    """The winner commits after the duplicate's snapshot was taken."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite's transactions are serial")
    result = tasks.welcomes.delay(5)

    def run():
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return deliver(result)

    with open_transaction(leave_marker):
        duplicate = Elsewhere(run)
        wait_for(somebody_waits, 10, "the duplicate waits")
    assert duplicate.result() == ("SUCCESS", "theirs")
    assert Job.objects.get(pk=result.id).lease == 1


@pytest.mark.slow
@pytest.mark.core
def test_twenty_processes_deliver_one_key_fifty_times():
    deliver_fifty_times(tasks.welcomes)


def test_the_marker_costs_one_query(node):
    def statements(task, *args):
        result = task.delay(*args)
        with CaptureQueriesContext(connection) as queries:
            deliver(result)
        return [q["sql"] for q in queries.captured_queries if not q["sql"].startswith(("BEGIN", "COMMIT"))]

    plain, marked = statements(tasks.effect, "a"), statements(tasks.welcomes, 5)
    # deliver() reads the row once, for the message.
    assert len(marked) == len(plain) + 1


@pytest.mark.database
def test_an_expired_marker_is_none(node):
    deliver(tasks.welcomes.delay(5))
    Marker.objects.update(expires_at=transitions.now_plus(-1))
    result = tasks.welcomes.delay(5)
    deliver(result)
    assert effects() == {"welcome:5": 2}
    assert str(Marker.objects.get().job) == result.id
    assert Marker.objects.get().expires_at > Job.objects.get(pk=result.id).finished_at


@pytest.mark.database
def test_other_databases_do_it_with_a_savepoint(monkeypatch):
    monkeypatch.setattr(store, "of", Store)
    with transaction.atomic():
        assert markers.take("k", "once", "default", None)
        assert not markers.take("k", "once", "default", None)
        Marker.objects.update(expires_at=transitions.now_plus(-1))
        assert markers.take("k", "once", "default", None)


def test_other_tasks_of_the_same_key_are_a_mistake_too(node):
    deliver(tasks.marked.delay("a"))
    Marker.objects.update(key="welcome:5")
    result = tasks.welcomes.delay(5)
    deliver(result)
    assert Job.objects.get(pk=result.id).error["type"] == "IdempotencyMismatch"


def test_a_new_argument_with_a_default_breaks_no_marker():
    def old(user_id):
        pass

    def new(user_id, language="en"):
        pass

    before = fingerprint("t", inspect.signature(old), [5], {})
    assert fingerprint("t", inspect.signature(new), [5], {}) == before
    assert fingerprint("t", inspect.signature(new), [], {"user_id": 5, "language": "en"}) == before
    assert fingerprint("t", inspect.signature(new), [5, "de"], {}) != before


# What is wrong where it is declared


def declared(**options):
    """Make a task of it, as the decorator does when the app is ready."""
    name = f"tests.declared{time.monotonic_ns()}"

    def body(user_id, days=1):
        pass

    try:
        task = current_app._task_from_fun(body, name=name, base=Task, **options)
        return task.key_templates
    finally:
        current_app.tasks.pop(name, None)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"idempotency_key": "welcome:{user}"}, ValueError, "'user'.*it takes user_id, days"),
        ({"idempotency_key": "welcome:{}"}, ValueError, "must name the arguments"),
        ({"idempotency_key": "welcome:{user_id"}, ValueError, "no template"),
        ({"idempotency_key": ""}, ValueError, "empty"),
        ({"idempotency_key": 5}, TypeError, "template"),
        ({"idempotency_key": "k:{user_id}", "atomic": False}, ValueError, "leave atomic=False out"),
        ({"unique": "k:{user}"}, ValueError, "'user'"),
        ({"unique": "k", "unique_until": "later"}, ValueError, "'started' or 'finished'"),
        ({"unique_for": 5}, ValueError, "needs unique="),
        ({"unique": "k", "unique_for": -1}, ValueError, "above 0"),
    ],
)
def test_bad_options_are_told_where_they_are_declared(options, error, text):
    with pytest.raises(error, match=text):
        declared(**options)


def test_a_task_that_is_declared_wrongly_takes_no_call():
    def body(user_id):
        pass

    with pytest.raises(ValueError, match="'user'"):
        current_app._task_from_fun(body, name="tests.wrong", base=Task, unique="k:{user}")
    task = current_app.tasks.pop("tests.wrong")
    with pytest.raises(ValueError, match="'user'"):
        task.delay(5)
    assert not Job.objects.exists()


def test_templates_and_callables_see_the_bound_arguments():
    keys = declared(idempotency_key="welcome:{user_id}:{days}", unique=lambda user_id, days=1: f"u{user_id}")
    assert keys["idempotency_key"].of([5], {}) == "welcome:5:1"
    assert keys["idempotency_key"].of([], {"days": 2, "user_id": 5}) == "welcome:5:2"
    assert keys["unique"].of([5], {}) == "u5"


def test_a_callable_must_return_text():
    with pytest.raises(TypeError, match="text"):
        KeyTemplate("unique", lambda: 5, inspect.signature(lambda: None)).of((), {})


def test_a_key_that_is_too_long_is_told_at_the_call():
    with pytest.raises(ValueError, match="255"):
        tasks.welcomes.delay("x" * 300)
    assert not Job.objects.exists()


# Snooze


@pytest.mark.database
def test_a_body_that_snoozes_comes_back_and_uses_no_attempt(node):
    result = tasks.snoozes.delay("a", 60)
    assert deliver(result)[0] == "IGNORED"
    job = Job.objects.get()
    assert (job.state, job.retries, job.snoozes, job.crashes) == ("scheduled", 0, 1, 0)
    assert 55 < (job.run_at - job.started_at).total_seconds() < 65
    assert job.error["message"] == "not yet"
    assert effects() == {}


def test_whoever_snoozes_for_ever_ends_failed(node, settings):
    settings.JOBS = {**settings.JOBS, "MAX_SNOOZES": 3}
    result = tasks.snoozes.delay("a", 0)
    for _ in range(3):
        Job.objects.filter(state="scheduled").update(state="ready")
        deliver(result)
    job = Job.objects.get()
    assert (job.state, job.snoozes, job.retries) == ("failed", 3, 0)


@pytest.mark.parametrize(("seconds", "error"), [("5", TypeError), (None, TypeError), (-1, ValueError)])
def test_snooze_takes_seconds(seconds, error):
    with pytest.raises(error):
        Snooze(seconds)


class Kind(str, enum.Enum):  # noqa: UP042 (its str() is its name)
    WELCOME = "welcome"

    @classmethod
    def of(cls, user_id, days=1):
        return f"{cls.WELCOME.value}:{user_id}"


def test_a_key_may_be_a_bound_method():
    assert declared(unique=Kind.of)["unique"].of([5], {}) == "welcome:5"
