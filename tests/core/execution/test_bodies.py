"""What a run calls: whatever a task is made of, its body runs in the job's transaction, or the job does not succeed."""

from __future__ import annotations

import functools
import sys
import time
from types import ModuleType

import pytest
from asgiref.sync import async_to_sync
from celery import current_app, shared_task
from django.db import connection, transaction

from jobs import Snooze, Task, extensions  # noqa: F401  (a mark names one)
from jobs.conf import sentry
from jobs.lifecycle.worker_state import BODY, NAMED, worker_state
from jobs.models import Job
from tests import tasks
from tests.helpers.driver import is_plain  # noqa: F401  (a mark names one)
from tests.helpers.harness import Worker, deliver, effects, run_ready, wait_ended
from tests.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.usefixtures("node"),
]


def leave(key):
    assert connection.in_atomic_block
    Effect.objects.create(key=key)


@pytest.fixture
def declare():
    """Make a task as the decorator does when the app is ready."""
    made = []

    def declare(body, base=Task, **options):
        made.append(f"tests.bodies{time.monotonic_ns()}")
        return current_app._task_from_fun(body, name=made[-1], base=base, **options)

    yield declare
    for name in made:
        current_app.tasks.pop(name, None)


def ended(task, *args):
    result = task.delay(*args)
    run_ready()
    return Job.objects.get(pk=result.id)


# What would never run


async def waits():
    pass


def yields():
    yield


async def waits_and_yields():
    yield


@pytest.mark.parametrize(
    ("body", "cure"),
    [
        pytest.param(
            *(waits, "async_to_sync"),
            marks=pytest.mark.skipif("extensions.through('run_inline')", reason="an extension awaits it"),
        ),
        (yields, "return a list"),
        (waits_and_yields, "return a list"),
    ],
    ids=["async def", "yield", "async def with yield"],
)
def test_a_body_that_would_never_run_is_no_task(declare, body, cure):
    with pytest.raises(TypeError, match=cure):
        declare(body)
    [name] = [name for name in current_app.tasks if name.startswith("tests.bodies")]
    with pytest.raises(TypeError, match=cure):
        current_app.tasks[name].delay()
    assert not Job.objects.exists()


def test_what_is_made_synchronous_in_a_body_runs(declare):
    async def say(key):
        return key

    def body(key):
        return async_to_sync(say)(key)

    assert ended(declare(body), "a").result == "a"


@pytest.mark.parametrize("made", [waits, yields, waits_and_yields])
def test_a_body_that_returns_what_never_ran_has_failed(declare, made):
    def body():
        leave("before")
        return made()

    job = ended(declare(body))
    assert (job.state, job.error["type"]) == ("failed", "TypeError")
    assert "async_to_sync" in job.error["message"]
    assert not effects()


# A transaction that its body ends


def end_by(how):
    def body():
        leave("before")
        if how in ("commit", "rollback"):
            getattr(connection.connection, how)()
        else:
            connection.cursor().execute(how)
        leave("after")

    return body


@pytest.mark.skipif("connection.vendor == 'mysql' or is_plain()", reason="the driver does not tell")
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK", "commit", "rollback"])
def test_a_body_that_ends_its_own_transaction_has_not_succeeded(declare, how):
    job = ended(declare(end_by(how)))
    assert (job.state, job.error["type"]) == ("failed", "ProgrammingError")
    assert "atomic=False" in job.error["message"]
    # What comes after it is rolled back where the driver begins anew.
    assert ("before" in effects()) == (how.lower() == "commit")


@pytest.mark.skipif("connection.vendor == 'mysql' or is_plain()", reason="the driver does not tell")
def test_a_transaction_that_ends_inside_of_a_block_has_ended(declare):
    def body():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            leave("before")
            connection.cursor().execute("COMMIT")
            leave("lost")
            raise ZeroDivisionError
        leave("after")

    assert ended(declare(body)).state == "failed"


def test_a_block_that_is_rolled_back_first_is_no_end_of_the_transaction(declare):
    def body():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            leave("lost")
            raise ZeroDivisionError
        leave("kept")

    assert ended(declare(body)).state == "succeeded"
    assert effects() == {"kept": 1}


# A base class with its own __call__


class CallsRun(Task):
    """As many projects have it."""

    abstract = True

    def __call__(self, *args, **kwargs):
        leave("call")
        return self.run(*args, **kwargs)


class CallsSuper(Task):
    abstract = True

    def __call__(self, *args, **kwargs):
        leave("call")
        return super().__call__(*args, **kwargs)


class Mixed:
    def __call__(self, *args, **kwargs):
        leave("mixin")
        return super().__call__(*args, **kwargs)


class CallsMixin(Mixed, CallsRun):
    abstract = True


class CallsNothing(Task):
    """Its body is the ``__call__``."""

    abstract = True

    def __call__(self, *args, **kwargs):
        leave("call")
        leave(args[0])
        return self.request.id


OWN = [CallsRun, CallsSuper, CallsMixin, CallsNothing]


@pytest.mark.parametrize("base", OWN)
def test_a_call_of_its_own_is_part_of_the_body(declare, base):
    @functools.partial(declare, base=base, bind=True)
    def task(self, key):
        leave(key)
        return self.request.id

    job = ended(task, "body")
    assert (job.state, job.result, job.lease) == ("succeeded", str(job.pk), 1)
    assert effects() == {"call": 1, "body": 1} | ({"mixin": 1} if base is CallsMixin else {})


@pytest.mark.slow
def test_a_worker_runs_a_call_of_its_own_in_the_jobs_transaction():
    results = tasks.own_call.delay_many([(str(n),) for n in range(20)])
    with Worker():
        jobs = wait_ended(*[result.id for result in results])
    assert {(job.state, job.node_losses) for job in jobs} == {("succeeded", 0)}
    assert effects() == {str(n): 1 for n in range(20)}
    assert set(Effect.objects.values_list("note", flat=True)) == {"True"}


@pytest.mark.parametrize("base", OWN[:3])
def test_a_call_of_its_own_fails_and_retries_with_the_body(declare, base):
    @functools.partial(declare, base=base, bind=True, max_retries=1)
    def task(self, key):
        leave(key)
        raise self.retry(exc=OSError("down"), countdown=0)

    job = ended(task, "body")
    assert (job.state, job.retries, job.lease, job.error["type"]) == ("failed", 1, 2, "OSError")
    assert not effects()


def test_a_plain_call_is_celerys(declare):
    """Also of a task whose class was registered itself, and of one that inherits from that."""

    class Registered(CallsRun):
        name = "tests.bodies.registered"

        def run(self, key):
            leave(key)
            return key

    class Inherits(Registered):
        name = "tests.bodies.inherits"

        def __call__(self, *args, **kwargs):
            leave("outer")
            return super().__call__(*args, **kwargs)

    try:
        first, second = current_app.register_task(Registered()), current_app.register_task(Inherits())
        assert ended(first, "a").result == "a"
        assert effects() == {"call": 1, "a": 1}
        assert ended(second, "b").result == "b"
        assert effects() == {"call": 2, "outer": 1, "a": 1, "b": 1}
        with transaction.atomic():
            assert second("c") == "c"
        assert effects() == {"call": 3, "outer": 2, "a": 1, "b": 1, "c": 1}
    finally:
        for name in ("registered", "inherits"):
            current_app.tasks.pop(f"tests.bodies.{name}", None)


@shared_task
def replaced_call(key):
    leave(key)


def test_a_call_that_was_replaced_after_the_task_was_registered_does_not_stand_in_the_way(node, monkeypatch):
    """A run calls the body itself."""
    called = []
    task = replaced_call._get_current_object()
    monkeypatch.setattr(type(task), "__call__", lambda self, *args, **kwargs: called.append(args))
    assert ended(replaced_call, "a").lease == 1
    assert (effects(), called) == ({"a": 1}, [])


# What no row can hold


def test_a_run_that_its_wrapper_does_not_call_fails_after_a_counted_number_of_times(declare, settings, monkeypatch):
    """Sentry's is wrapped around it: else the job would be given back again and again."""
    settings.JOBS = {**settings.JOBS, "MAX_NODE_LOSSES": 3}
    monkeypatch.setitem(sys.modules, sentry.MODULE, ModuleType("celery"))
    monkeypatch.setattr(sentry, "around", lambda step, task, call: lambda *given: None)
    job = declare(leave).delay("a")
    for _ in range(5):
        Job.objects.filter(state="scheduled").update(state="ready")
        run_ready()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.node_losses, row.lease, row.error["type"]) == ("failed", 3, 3, "RuntimeError")
    assert effects() == {}


def test_the_phase_of_a_body_ends_with_it_however_it_ends(node):
    """In it, and only in it, a soft limit may strike."""
    phases.clear()
    assert deliver(notes_its_phase.delay())[0] == "FAILURE"
    assert phases == [BODY, NAMED]


phases: list[int] = []


class NotesItsPhase(Task):
    abstract = True

    def on_failure(self, *args):
        phases.extend(slot.phase for slot in worker_state.occupied())


@shared_task(base=NotesItsPhase)
def notes_its_phase():
    phases.extend(slot.phase for slot in worker_state.occupied())
    raise ValueError("no")


def test_more_attempts_than_two_bytes_can_count(declare):
    @functools.partial(declare, bind=True, max_retries=None)
    def task(self):
        if self.request.retries < 2**15:
            raise self.retry(countdown=0)
        return self.request.retries

    result = task.delay()
    Job.objects.update(retries=2**15 - 1)
    run_ready()
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.result, job.retries) == ("succeeded", 2**15, 2**15)


@pytest.mark.parametrize("seconds", [1.8e12, 1e13, 11 * 366 * 86400])
def test_nobody_snoozes_for_milliseconds(declare, seconds):
    def body():
        leave("a")
        raise Snooze(seconds)

    job = ended(declare(body))
    assert (job.state, job.error["type"]) == ("failed", "ValueError")
    assert "milliseconds" in job.error["message"]
    assert not effects()


@pytest.mark.parametrize(
    "options",
    [
        {"eta": "9999-12-31T23:59:59Z"},
        {"expires": "0001-01-01T00:00:00Z"},
        # The row of a job that waits for something else has such a time.
        {"eta": "9000-01-01T00:00:00Z"},
        {"eta": "8999-12-31T23:30:00-05:00"},
    ],
    ids=str,
)
def test_a_time_that_not_every_zone_can_show_is_no_time(declare, options):
    with pytest.raises(ValueError, match="years 2 to 8999"):
        declare(leave).apply_async(("a",), **options)


def test_a_settle_that_no_row_can_hold_fails_the_job(declare, caplog):
    """It is no outage: the same would come again."""

    def body():
        leave("a")
        snooze = Snooze(1)
        snooze.seconds = 1e13
        raise snooze

    with caplog.at_level("INFO", "jobs"):
        job = ended(declare(body))
    assert (job.state, job.lease) == ("failed", 1)
    assert job.error["type"] in ("OverflowError", "DataError")
    assert not effects()
    assert "finish_retried" not in [getattr(record, "action", "") for record in caplog.records]


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="a number is never too large for SQLite")
def test_a_settle_that_the_server_refuses_for_its_data_fails_the_job(declare, caplog):
    @functools.partial(declare, bind=True, max_retries=None)
    def task(self):
        leave("a")
        raise self.retry(countdown=0)

    result = task.delay()
    Job.objects.update(retries=2**31 - 1)
    with caplog.at_level("INFO", "jobs"):
        run_ready()
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.error["type"], job.lease) == ("failed", "DataError", 1)
    assert "out of range" in job.error["message"]
    assert not effects()
    assert "finish_retried" not in [getattr(record, "action", "") for record in caplog.records]
