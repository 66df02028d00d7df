"""The pipeline of a run, in this process: claim, body in its transaction, fenced finish."""

from __future__ import annotations

import datetime
import gc
import pickle
import uuid
import weakref
from decimal import Decimal

import celery.exceptions
import pytest
from celery import current_app, shared_task
from django.db import InterfaceError, InternalError, OperationalError, connection, transaction
from django.utils import timezone

import jobs
from jobs import store
from jobs.conf import syncpoints
from jobs.errors import Snooze, TaskExited
from jobs.lifecycle import transitions, wakeups
from jobs.lifecycle.run import current_run
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Cancellation, Job
from jobs.models.values import decoded
from jobs.store import databases
from jobs.worker.runner import Runner
from tests import tasks
from tests.helpers import driver
from tests.helpers.concurrency import Elsewhere, cut, end_session
from tests.helpers.driver import executed
from tests.helpers.harness import claim, deliver, effects, run
from tests.helpers.hearing import hearing
from tests.helpers.routers import Replica
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _node(node):
    pass


def test_a_run_commits_effect_and_completion_together():
    result = tasks.effect.delay("a")
    assert deliver(result)[0] == "SUCCESS"
    job = Job.objects.get()
    assert (job.state, job.result, job.lease, job.error) == ("succeeded", "a", 1, None)
    assert job.started_at <= job.finished_at <= timezone.now()
    assert job.node_id == worker_state.node
    assert effects() == {"a": 1}
    assert worker_state.occupied() == []


@pytest.fixture
def runner():
    """Claims and runs what is in the default queue, as a process of a worker does."""
    worker_state.queues = [current_app.conf.task_default_queue]
    return Runner(current_app._get_current_object(), "here")


@pytest.mark.core
def test_a_run_costs_its_completion_and_its_share_of_one_claim(runner, settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 10}
    monkeypatch.setattr("jobs.worker.runner.BATCH_TIME", 100.0)
    tasks.noop.delay_many([(n,) for n in range(11)])
    # The first of its kind goes alone, and tells how long one takes.
    assert runner.run_batch()
    with executed(monkeypatch) as statements:
        assert runner.run_batch()
    assert Job.objects.filter(state="succeeded").count() == 11
    # Once a second the server forgets its plans.
    statements = [sql for sql in statements if sql != "DISCARD PLANS"]
    # On SQLite a look without the write lock comes first. MariaDB has a statement for each step of a claim.
    assert len(statements) == {"postgresql": 1, "sqlite": 2, "mysql": 4}[connection.vendor] + 10, statements


def test_a_job_that_ran_is_not_claimed_again():
    result = tasks.effect.delay("a")
    assert deliver(result)[0] == "SUCCESS"
    assert deliver(result)[0] == "UNCLAIMED"
    assert effects() == {"a": 1}


def test_a_run_whose_row_is_gone_leaves_nothing():
    job = claim(tasks.effect.delay("a").id)
    Job.objects.all().delete()
    assert run(job)[0] == "IGNORED"
    assert not effects()


def test_the_body_sees_what_the_row_says():
    result = tasks.retries.delay("old", 5)
    Job.objects.update(args=["new", 2], retries=2)
    assert deliver(result) == ("SUCCESS", 2)
    assert effects() == {"new": 1}


def test_a_failure_rolls_back_and_is_kept():
    result = tasks.raises.delay("wrong", key="a")
    state, value = deliver(result)
    assert state == "FAILURE"
    assert isinstance(value, ValueError)
    job = Job.objects.get()
    assert job.state == "failed"
    assert job.error["type"] == "ValueError"
    assert "tests/tasks.py" in job.error["traceback"]
    assert job.error["attempt"] == 1
    assert job.errors == [job.error]
    assert not effects()


@pytest.mark.parametrize(("kind", "name"), [("memory", "MemoryError"), ("exit", "SystemExit"), ("nul", "ValueError")])
def test_ugly_exceptions_end_failed_under_their_names(kind, name):
    state, value = deliver(tasks.raises.delay(kind))
    assert state == "FAILURE"
    assert not isinstance(value, MemoryError | SystemExit)
    job = Job.objects.get()
    assert (job.state, job.error["type"]) == ("failed", name)


def test_a_lost_lease_rolls_the_effects_back():
    """While the body runs, rescue gives the job to another node: this run must leave nothing."""
    if store.of("default").has_one_writer:
        pytest.skip("nobody else can write while the body does")
    result = tasks.effect.delay("a")

    def steal(point):
        if point == "before_commit":
            Elsewhere(lambda: Job.objects.update(lease=2, token=2)).result()

    syncpoints.arm(steal)
    assert deliver(result)[0] == "IGNORED"
    assert not effects()
    job = Job.objects.get()
    assert (job.state, job.lease, job.error) == ("running", 2, None)


@shared_task
def hides_its_row(how):
    own = Job.objects.filter(pk=current_run().job.pk)
    own.delete() if how == "deleted" else own.update(**how)
    Effect.objects.create(key="a")


@pytest.mark.parametrize("how", ["deleted", {"lease": 2}, {"token": 2}, {"state": "ready"}])
def test_a_body_that_hides_its_own_row_fails_once_and_the_error_says_so(how):
    assert deliver(hides_its_row.delay(how))[0] == "FAILURE"
    assert not effects()
    job = Job.objects.get()
    assert (job.state, job.lease, job.node_losses) == ("failed", 1, 0)
    assert "its body had changed or deleted it" in job.error["message"]


@pytest.mark.parametrize(
    "finish",
    [
        lambda job: transitions.succeed(job, None, 0.0),
        lambda job: transitions.succeed(job, "the same", 0.0, Job()),
        lambda job: transitions.hold(job),
        lambda job: transitions.fail(job, transitions.error_entry("E", "m")),
        lambda job: transitions.retry(job, None, transitions.error_entry("E", "m"), {}),
        lambda job: transitions.hand_back(job, 0),
        lambda job: transitions.crash(job, transitions.error_entry("E", "m"), 3),
        lambda job: transitions.lose(job, transitions.error_entry("E", "m"), 10),
        lambda job: transitions.cancel_running(job, transitions.error_entry("E", "m")),
    ],
)
@pytest.mark.parametrize("stolen", [{"lease": 9}, {"token": 9}, {"state": "ready"}])
def test_every_way_out_of_running_is_fenced(finish, stolen):
    job = claim(tasks.effect.delay("a").id)
    Job.objects.update(**stolen)
    with transaction.atomic():
        assert finish(job) is False
    Job.objects.update(state="running", lease=job.lease, token=job.token)
    with transaction.atomic():
        assert finish(job) is True


@shared_task
def hooked(key):
    """A hook of the project raises right after the COMMIT, out of atomic's exit."""
    from django.db import transaction

    def broken():
        raise RuntimeError("a hook of the project")

    Effect.objects.create(key=key)
    transaction.on_commit(broken)
    return "done"


@pytest.mark.core
def test_a_commit_whose_answer_is_lost_is_believed_when_the_row_says_so():
    """The COMMIT went through, and an exception was raised all the same: the job succeeded."""
    result = hooked.delay("a")
    state, value = deliver(result)
    assert (state, value) == ("SUCCESS", "done")
    assert Job.objects.get().state == "succeeded"
    assert effects() == {"a": 1}


def answer_lost(state):
    """The statement that writes this state is committed, and the connection dies before its answer."""

    def wrap(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if not lost and sql.startswith("UPDATE") and params and state in params:
            lost.append(sql)
            if connection.vendor == "postgresql":
                cut()
            raise OperationalError("the connection is gone")
        return found

    lost: list[str] = []
    return connection.execute_wrapper(wrap)


@pytest.mark.database
@pytest.mark.parametrize(
    ("task", "state", "heard"), [(tasks.fails, "failed", "FAILURE"), (tasks.retries, "scheduled", "RETRY")]
)
def test_a_settle_whose_answer_is_lost_is_believed_when_the_row_says_so(task, state, heard):
    """Else nobody would hear of it: Celery took the run for another one's, and no extension was told."""
    told = []
    result = task.delay("a", *([1] if task is tasks.retries else []))
    with answer_lost(state), hearing(lambda job, action: told.append((action, job.state, job.error))):
        assert deliver(result)[0] == heard
    [job] = Job.objects.all()
    assert (job.state, len(job.errors)) == (state, 1)
    assert told[1:] == [("failed" if state == "failed" else "retried", state, job.error)]


@pytest.mark.database
@pytest.mark.parametrize("is_asked", [False, True], ids=["handed back", "asked to end"])
def test_an_end_with_another_error_than_the_bodys_is_believed_too(is_asked):
    """One that is handed back has none, and one that was asked to end has the note's."""
    told = []

    def hear(job, action):
        told.append((action, job.state))
        if is_asked and action == "started":
            Cancellation.objects.create(job=job.pk)

    result = tasks.steps_out.delay("a", "requeue")
    state = "cancelled" if is_asked else "scheduled"
    with answer_lost(state), hearing(hear):
        deliver(result)
    assert (Job.objects.get().state, told[1:]) == (state, [("cancelled" if is_asked else "handed_back", state)])


@shared_task(bind=True)
def adds(self, key):
    Effect.objects.create(key=key)
    return key


@pytest.mark.database
@pytest.mark.parametrize("atomic", [True, False])
def test_a_success_whose_answer_is_lost_is_told_as_one(monkeypatch, atomic):
    if atomic and (connection.vendor != "postgresql" or driver.has_plain_session()):
        pytest.skip("the completion is committed by a statement of its own")
    told = []
    hear = lambda job, action: told.append((action, job.state, job.result, job.finished_at is None))  # noqa: E731
    kind = type(store.of("default"))
    succeed, lost = kind.succeed, []

    def lose_the_answer(self, *args):
        done = succeed(self, *args)
        if not lost:
            lost.append(done)
            raise OperationalError("the connection is gone")
        return done

    monkeypatch.setattr(adds, "atomic", atomic)
    monkeypatch.setattr(kind, "succeed", lose_the_answer)
    result = adds.delay("a")
    with hearing(hear):
        assert deliver(result) == ("SUCCESS", "a")
    assert (told[1:], effects()) == ([("succeeded", "succeeded", "a", False)], {"a": 1})


@pytest.mark.database
def test_a_settle_of_somebody_else_is_not_believed():
    """The node was found dead, and its job given back, while this run waited for its database."""
    result = tasks.fails.delay("a")
    told = []

    def wrap(execute, sql, params, many, context):
        if sql.startswith("UPDATE") and params and "failed" in params and not given_back:
            given_back.append(sql)
            Job.objects.update(state="ready", error={"type": "NodeLost", "message": "", "at": "", "attempt": 1})
            raise OperationalError("the connection is gone")
        return execute(sql, params, many, context)

    given_back: list[str] = []
    with hearing(lambda job, action: told.append(action)), connection.execute_wrapper(wrap):
        assert deliver(result)[0] == "IGNORED"
    assert Job.objects.get().state == "ready"
    assert told == ["started"]


def test_a_retry_is_the_same_row_that_waits():
    result = tasks.retries.delay("a", 1)
    state, value = deliver(result)
    assert state == "RETRY"
    assert isinstance(value, celery.exceptions.Retry)
    job = Job.objects.get()
    assert (job.state, job.retries) == ("scheduled", 1)
    assert job.error["type"] == "Retry"
    assert Job.objects.count() == 1
    assert not effects()
    Job.objects.update(state="ready")
    assert deliver(result)[0] == "SUCCESS"
    assert Job.objects.get().result == 1
    assert effects() == {"a": 1}


@shared_task(bind=True, default_retry_delay=0)
def retries_quietly(self, key):
    Effect.objects.create(key=key, note=str(self.request.retries))
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
    return "done"


def test_retry_without_throw_and_a_normal_return_settles_as_retry():
    result = retries_quietly.delay("a")
    assert deliver(result)[0] == "RETRY"
    assert Job.objects.get().state == "ready"
    assert not effects()
    assert deliver(result)[0] == "SUCCESS"
    assert Job.objects.get().result == "done"


def test_autoretry_counts_by_the_row_and_ends_failed():
    result = tasks.autoretries.delay("a")
    for attempt in (1, 2):
        assert deliver(result)[0] == "RETRY"
        job = Job.objects.get()
        assert (job.retries, job.state, job.error["type"]) == (attempt, "scheduled", "ValueError")
        Job.objects.update(state="ready")
    assert deliver(result)[0] == "FAILURE"
    job = Job.objects.get()
    assert (job.state, job.retries, len(job.errors)) == ("failed", 2, 3)
    assert not effects()


@shared_task(bind=True)
def changes_course(self, key):
    Effect.objects.create(key=key)
    if key == "old":
        raise self.retry(args=("new",), countdown=5, queue="mail", priority=4)


def test_retry_with_new_arguments_and_options():
    result = changes_course.delay("old")
    assert deliver(result)[0] == "RETRY"
    job = Job.objects.get()
    assert (job.args, job.queue, job.priority) == (["new"], "mail", 4)
    Job.objects.update(state="ready")
    assert deliver(result)[0] == "SUCCESS"
    assert effects() == {"new": 1}


class CallsAfterTheCommit(jobs.Task):
    def apply_async(self, *args, **kwargs):
        transaction.on_commit(lambda: super(CallsAfterTheCommit, self).apply_async(*args, **kwargs))


@shared_task(base=CallsAfterTheCommit, bind=True)
def retries_after_the_commit(self, key):
    if self.request.retries == 0:
        raise self.retry(countdown=5)
    Effect.objects.create(key=key)


def test_a_retry_of_a_task_whose_class_puts_its_calls_off_until_the_commit():
    retries_after_the_commit.delay("a")
    assert deliver(Job.objects.get())[0] == "RETRY"
    job = Job.objects.get()
    assert (job.state, job.retries) == ("scheduled", 1)
    Job.objects.update(state="ready")
    assert deliver(job)[0] == "SUCCESS"
    assert effects() == {"a": 1}


@shared_task(bind=True)
def counts_down(self, n):
    """Calls itself: only the outermost call is a run."""
    Effect.objects.create(key=f"down-{n}")
    return 0 if n == 0 else self(n - 1) + 1


def test_a_task_that_calls_itself_is_one_run():
    result = counts_down.delay(3)
    assert deliver(result)[0] == "SUCCESS"
    assert Job.objects.count() == 1
    assert Job.objects.get().result == 3
    assert sum(effects().values()) == 4


def test_a_plain_call_and_apply_make_no_row():
    assert tasks.effect("a") == "a"
    assert tasks.effect.apply(("b",)).get() == "b"
    assert tasks.retries.apply(("c", 2)).get() == 2
    assert not Job.objects.exists()


def test_eager_mode_behaves_as_celery_users_expect():
    current_app.conf.task_always_eager = True
    try:
        result = tasks.effect.delay("a")
        assert result.get() == "a"
        with pytest.raises(ValueError, match="wrong"):
            tasks.raises.apply(("wrong",), throw=True)
    finally:
        current_app.conf.task_always_eager = False
    assert not Job.objects.exists()
    assert effects() == {"a": 1}


def test_a_job_made_by_a_body_is_committed_with_it():
    result = tasks.enqueues.delay("a")
    deliver(result)
    child = Job.objects.get(task="tests.tasks.effect")
    assert child.parent_id == uuid.UUID(result.id)
    assert child.root_id == uuid.UUID(result.id)


@pytest.mark.parametrize(
    ("outcome", "state", "celery_state", "kind"),
    [
        ("ignore", "cancelled", "IGNORED", "Cancelled"),
        ("reject", "failed", "REJECTED", "Reject"),
        ("requeue", "scheduled", "IGNORED", None),
    ],
)
def test_ignore_and_reject_from_a_body(outcome, state, celery_state, kind):
    result = tasks.steps_out.delay("a", outcome)
    assert deliver(result)[0] == celery_state
    job = Job.objects.get()
    assert job.state == state
    assert (job.error or {}).get("type") == kind
    assert (job.retries, job.crashes, job.node_losses) == (0, 0, 0)
    assert not effects()


@shared_task(bind=True)
def comes_back_in(self, seconds):
    raise self.retry(countdown=seconds)


def test_a_retry_that_cannot_be_kept_says_why():
    assert deliver(comes_back_in.delay(1e9))[0] == "REJECTED"
    job = Job.objects.get()
    assert (job.state, job.error["type"]) == ("failed", "ValueError")
    assert "more than ten years" in job.error["message"]


def test_a_job_that_its_body_rejects_has_failed_for_whoever_waits_for_its_result(monkeypatch):
    stored = []
    monkeypatch.setattr(type(current_app.backend), "store_result", lambda self, *args, **kwargs: stored.append(args))
    result = tasks.steps_out.delay("a", "reject")
    deliver(result)
    [(task_id, exc, state)] = stored
    assert (task_id, type(exc).__name__, state) == (result.id, "Reject", "FAILURE")


def test_a_result_that_is_not_json_is_kept_as_its_repr():
    result = tasks.returns_object.delay()
    assert deliver(result)[0] == "SUCCESS"
    kept = Job.objects.get().result
    assert kept["__type__"] == "repr"
    assert kept["__value__"].startswith("<object object")


def test_atomic_false_leaves_transactions_to_the_body():
    result = tasks.manages_itself.delay("a")
    assert deliver(result)[0] == "FAILURE"
    assert effects() == {"a": 1}
    assert Job.objects.get().state == "failed"


def test_an_expired_job_is_not_claimed():
    result = tasks.effect.apply_async(("a",), expires=3600)
    Job.objects.update(expires_at=timezone.now() - timezone.timedelta(seconds=1))
    assert deliver(result)[0] == "UNCLAIMED"
    assert transitions.expire("default", 10) == 1
    job = Job.objects.get()
    assert (job.state, job.error["type"]) == ("cancelled", "Expired")
    assert not effects()


conflicts: list[str] = []


def meet_conflict(key, error):
    Effect.objects.create(key=key)
    if conflicts and conflicts.pop():
        raise OperationalError("in favour of another") from error


@shared_task
def conflicting(key):
    meet_conflict(key, driver.DEADLOCK)


@shared_task(autoretry_for=(Exception,), max_retries=2, default_retry_delay=0)
def conflicting_retried(key):
    meet_conflict(key, driver.SERIALIZATION)


@pytest.mark.parametrize("task", [conflicting, conflicting_retried])
@pytest.mark.parametrize("times", [1, 4])
def test_a_conflict_of_transactions_is_run_again_under_the_same_claim(monkeypatch, task, times):
    monkeypatch.setattr(f"{__name__}.conflicts", ["again"] * times)
    monkeypatch.setattr("jobs.execution.pipeline.RERUNS", [0.0] * 4)
    assert deliver(task.delay("a"))[0] == "SUCCESS"
    job = Job.objects.get()
    assert (job.state, job.lease, job.retries, job.node_losses) == ("succeeded", 1, 0, 0)
    assert effects() == {"a": 1}


def test_too_many_conflicts_give_the_job_back(monkeypatch):
    monkeypatch.setattr(f"{__name__}.conflicts", ["again"] * 5)
    monkeypatch.setattr("jobs.execution.pipeline.RERUNS", [0.0] * 4)
    assert deliver(conflicting.delay("a"))[0] == "IGNORED"
    job = Job.objects.get()
    assert (job.state, job.retries, job.node_losses) == ("ready", 0, 1)
    assert not effects()


def test_a_conflict_is_not_run_again_by_a_zombie(monkeypatch):
    monkeypatch.setattr(f"{__name__}.conflicts", ["again"])
    monkeypatch.setattr("jobs.execution.pipeline.RERUNS", [0.0] * 4)
    result = conflicting.delay("a")
    syncpoints.arm(lambda point: point == "after_claim" and Job.objects.update(token=9))
    assert deliver(result)[0] == "IGNORED"
    assert Job.objects.get().state == "running"
    assert not effects()


class Held:
    """What a body has in a variable."""


held: list[weakref.ref] = []
#: For each attempt how much of what the attempts before it held is still there.
left: list[int] = []


@shared_task
def holding(error):
    left.append(sum(each() is not None for each in held))
    mine = Held()
    held.append(weakref.ref(mine))
    if error == "deadlock" and len(held) == 1:
        raise OperationalError("in favour of another") from driver.DEADLOCK
    if isinstance(error, int):
        raise Snooze(60) if error else ValueError


@pytest.mark.parametrize("error", ["deadlock", 60, 0])
def test_what_a_body_held_is_gone_before_the_next_one_begins(runner, monkeypatch, error):
    """A cursor that is closed later, by the garbage collection, would fail another job's transaction."""
    monkeypatch.setattr("jobs.execution.pipeline.RERUNS", [0.0])
    held.clear()
    left.clear()
    gc.disable()
    try:
        for argument in (error, None):
            holding.delay(argument)
            assert runner.run_batch()
    finally:
        gc.enable()
    assert left == ([0, 0, 0] if error == "deadlock" else [0, 0])


@shared_task
def noted():
    run = current_run()
    noted.refs = [weakref.ref(each) for each in (run, run.job, run.request)]


def test_a_run_that_succeeded_leaves_nothing_for_the_garbage_collection(runner):
    """What its job was given and returned is gone when the next one begins."""
    gc.disable()
    try:
        noted.delay()
        assert runner.run_batch()
        assert [each() for each in noted.refs] == [None] * 3
    finally:
        gc.enable()


def test_a_call_whose_followers_nobody_can_read_fails(runner, monkeypatch):
    def embedded(options):
        raise LookupError("a type that is not known here")

    monkeypatch.setattr("jobs.calling.request.embedded", embedded)
    tasks.effect.delay("a")
    assert runner.run_batch()
    assert Job.objects.get().state == "failed"


@pytest.mark.parametrize("wrong", [{"options": 5}, {"args": 5}, {"kwargs": [1]}], ids=str)
def test_a_row_that_nobody_can_run_fails_and_stands_in_nobodys_way(runner, wrong):
    """Somebody edited it by hand."""
    bad, good = tasks.noop.delay(), tasks.noop.delay()
    Job.objects.filter(pk=bad.id).update(**wrong)
    while runner.run_batch():
        pass
    assert Job.objects.get(pk=bad.id).state == "failed"
    assert Job.objects.get(pk=good.id).state == "succeeded"


def test_what_celerys_hook_raises_before_the_body_fails_the_job(runner, monkeypatch):
    """``Task.before_start``: Celery does not call the task then."""

    def refuse(*args):
        raise ValueError("not today")

    monkeypatch.setattr(type(tasks.noop._get_current_object()), "before_start", refuse)
    tasks.noop.delay()
    assert runner.run_batch()
    job = Job.objects.get()
    assert (job.state, job.error and job.error["message"]) == ("failed", "not today")


def test_a_result_backend_that_is_away_before_the_body_puts_the_job_off(runner, monkeypatch):
    """``task_track_started``: Celery writes there before it calls the task."""
    task = tasks.noop._get_current_object()
    monkeypatch.setattr(task, "track_started", True)

    def away(*args, **kwargs):
        raise ConnectionError("away")

    monkeypatch.setattr(type(task.backend), "store_result", away)
    monkeypatch.setattr(type(task.backend), "reads_rows", False)
    tasks.noop.delay()
    assert runner.run_batch()
    job = Job.objects.get()
    assert (job.state, job.crashes, job.node_losses, job.retries) == ("scheduled", 0, 0, 0)


@pytest.mark.parametrize("wrong", [float("inf"), "many", 0, True])
def test_max_crashes_is_a_number(wrong):
    def body():
        pass

    with pytest.raises(ValueError, match="max_crashes.*above 0"):
        current_app.task(name="tests.bad_crashes", max_crashes=wrong, shared=False, lazy=False)(body)
    current_app.tasks.pop("tests.bad_crashes", None)


def test_errors_keep_the_first_and_the_last():
    errors: list = []
    for number in range(100):
        errors = transitions._with(errors, {"n": number})
    assert [entry["n"] for entry in errors] == [*range(20), *range(80, 100)]


def test_a_body_rings_after_its_commit(monkeypatch):
    seen = []
    monkeypatch.setattr(
        wakeups, "notify", lambda using, queues: seen.append((connection.in_atomic_block, list(queues)))
    )
    result = tasks.enqueues.delay("a")
    seen.clear()
    deliver(result)
    assert seen == [(False, [current_app.conf.task_default_queue])]


@shared_task
def raises_no_exception(name):
    import asyncio

    raise {"CancelledError": asyncio.CancelledError, "GeneratorExit": GeneratorExit}[name]("odd")


@pytest.mark.parametrize("name", ["CancelledError", "GeneratorExit"])
def test_what_is_no_exception_fails_the_job_and_frees_its_slot(name):
    """Celery takes it for the death of a process, which under threads and solo does not die."""
    state, value = deliver(raises_no_exception.delay(name))
    assert state == "FAILURE"
    assert isinstance(value, TaskExited)
    job = Job.objects.get()
    assert (job.state, job.error["type"]) == ("failed", name)
    assert worker_state.occupied() == []


def test_a_database_error_before_the_body_is_not_the_bodys_failure(monkeypatch):
    """On SQLite the transaction's BEGIN waits for the one write lock, and gives up after its timeout."""
    real = transaction.atomic
    calls = []

    def atomic(*args, **kwargs):
        if not calls:
            calls.append(1)
            raise OperationalError("database is locked")
        return real(*args, **kwargs)

    job = claim(tasks.effect.delay("a").id)
    monkeypatch.setattr("jobs.execution.pipeline.transaction.atomic", atomic)
    assert run(job)[0] == "IGNORED"
    job = Job.objects.get()
    assert (job.state, job.node_losses, job.error["message"]) == ("ready", 1, "database is locked")


def test_an_interface_error_at_the_commit_runs_the_job_again(monkeypatch):
    def broken(*given):
        raise InterfaceError("connection already closed")

    result = tasks.effect.delay("a")
    with monkeypatch.context() as patch:
        patch.setattr(transitions, "succeed", broken)
        assert deliver(result)[0] == "IGNORED"
    assert Job.objects.get().state == "ready"
    assert not effects()
    assert deliver(result)[0] == "SUCCESS"
    assert effects() == {"a": 1}


def test_a_body_that_leaves_autocommit_off_fails():
    state, _ = deliver(tasks.leaves_autocommit_off.delay("a"))
    assert state == "FAILURE"
    job = Job.objects.get()
    assert (job.state, job.error["type"]) == ("failed", "ProgrammingError")
    assert connection.get_autocommit()


@shared_task(bind=True)
def shows_request(self):
    return [self.request.headers["tenant"], *self.request.timelimit]


def test_headers_and_limits_come_from_the_row():
    result = shows_request.apply_async(headers={"tenant": "old"})
    changed = {"headers": {"tenant": "new"}, "time_limit": 77, "soft_time_limit": 66}
    Job.objects.update(options={**Job.objects.get().options, **changed})
    assert deliver(result)[0] == "SUCCESS"
    assert Job.objects.get().result == ["new", 77, 66]


def test_a_job_of_a_later_release_is_left_to_its_workers():
    """A retry by newer code may have written it."""
    result = tasks.effect.delay("a")
    job = Job.objects.get()
    job.options["v"] = 2
    job.save()
    assert deliver(result)[0] == "IGNORED"
    job.refresh_from_db()
    assert (job.state, job.retries, job.crashes, job.node_losses, job.errors) == ("scheduled", 0, 0, 0, [])
    assert effects() == {}


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def eats_its_arguments(self, keys, fails_at):
    """Works its list off, and stumbles once."""
    done = []
    while keys:
        key = keys.pop(0)
        if key == fails_at and self.request.retries == 0:
            raise self.retry(countdown=0)
        Effect.objects.create(key=key)
        done.append(key)
    return done


def test_a_retry_keeps_what_the_caller_gave():
    result = eats_its_arguments.delay(list("abcde"), "c")
    assert deliver(result)[0] == "RETRY"
    assert Job.objects.get().args == [list("abcde"), "c"]
    assert deliver(result)[0] == "SUCCESS"
    assert effects() == dict.fromkeys("abcde", 1)


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def sends_again_what_failed(self, keys):
    """As packages do that send a list of mails: each one that failed is a retry with arguments of its own."""
    for key in keys:
        if self.request.retries == 0:
            self.retry([[key]], countdown=0, throw=False)
        else:
            Effect.objects.create(key=key)


def test_each_of_several_retries_in_one_body_is_a_job():
    result = sends_again_what_failed.delay(list("abc"))
    assert deliver(result)[0] == "RETRY"
    first, *others = Job.objects.order_by("pk")
    assert (str(first.pk), first.args, first.retries) == (result.id, [["c"]], 1)
    assert [(job.args, job.retries, job.parent_id, job.root_id) for job in others] == [
        ([["a"]], 1, first.pk, first.pk),
        ([["b"]], 1, first.pk, first.pk),
    ]
    for job in Job.objects.all():
        assert deliver(job)[0] == "SUCCESS"
    assert effects() == dict.fromkeys("abc", 1)


def test_only_the_job_itself_keeps_the_id_that_the_caller_wrote():
    asked = uuid.uuid4().hex
    result = sends_again_what_failed.apply_async((list("ab"),), task_id=asked)
    assert deliver(result)[0] == "RETRY"
    first = Job.objects.get(pk=asked)
    [other] = Job.objects.exclude(pk=asked)
    assert (first.task_id, other.task_id) == (asked, str(other.pk))


def closes(key, how):
    Effect.objects.create(key=key)
    Effect.objects.count()
    if how == "by the driver":
        connection.connection.close()
        return
    connection.close()
    if how == "goes on":
        Effect.objects.count()


closes_its_connection = shared_task(name=f"{__name__}.closes_its_connection")(closes)


@pytest.mark.database
@pytest.mark.parametrize("how", ["goes on", "returns", "by the driver"])
def test_a_body_that_closes_its_connection_fails_at_once(how):
    if how == "by the driver" and not hasattr(connection.connection, "broken"):
        pytest.skip("only psycopg 3 tells that from a lost link")
    result = closes_its_connection.delay("a", how)
    assert deliver(result)[0] == "FAILURE"
    job = Job.objects.get()
    assert (job.state, job.error["type"], job.node_losses) == ("failed", "ProgrammingError", 0)
    assert "atomic=False" in job.error["message"]
    assert not effects()


closes_its_own_connection = shared_task(name=f"{__name__}.closes_its_own_connection", atomic=False)(closes)


@pytest.mark.parametrize("how", ["goes on", "returns"])
def test_a_body_without_a_transaction_may_close_its_connection(how):
    result = closes_its_own_connection.delay("a", how)
    assert deliver(result)[0] == "SUCCESS"
    assert Job.objects.get().state == "succeeded"
    assert effects() == {"a": 1}


@shared_task(bind=True)
def tells_its_ids(self):
    return [self.request.id, self.request.root_id]


def test_an_id_stays_as_the_caller_wrote_it():
    asked = uuid.uuid4().hex
    result = tells_its_ids.apply_async(task_id=asked)
    assert result.id == asked
    job = Job.objects.get(pk=asked)
    assert job.task_id == asked
    state, seen = deliver(result)
    assert (state, seen) == ("SUCCESS", [asked, asked])


def test_the_body_gets_the_types_that_the_caller_gave():
    given = [uuid.uuid4(), Decimal("1.10"), datetime.date(2030, 1, 2), b"\xff"]
    result = tasks.gives_back.delay(*given, when=datetime.timedelta(seconds=1.5))
    state, value = deliver(result)
    assert (state, value) == ("SUCCESS", [*given, datetime.timedelta(seconds=1.5)])
    job = Job.objects.get()
    assert decoded(job.result) == value
    assert decoded(job.args) == given


@shared_task(idempotency_key="any:{key}")
def marked_by_any(key):
    return key


def test_a_key_may_be_made_of_any_type():
    key = uuid.uuid4()
    first, second = marked_by_any.delay(key), marked_by_any.delay(key)
    assert Job.objects.get(pk=first.id).marker_key == f"any:{key}"
    assert [deliver(result) for result in (first, second)] == [("SUCCESS", key), ("SUCCESS", key)]
    assert Job.objects.get(pk=second.id).replay_of == uuid.UUID(first.id)


@shared_task(max_retries=0)
def meets_another_server(how):
    """Another connection of the body is to a server that takes no writes, or dies."""
    Effect.objects.create(key=how)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            if how == "reader":
                cursor.execute("SET default_transaction_read_only = on")
                cursor.execute("UPDATE tests_effect SET note = ''")
            else:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    finally:
        other.close()


@pytest.mark.parametrize("how", ["reader", "dies"])
def test_an_error_of_another_connection_is_the_bodys(how):
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's errors have codes")
    assert deliver(meets_another_server.delay(how))[0] == "FAILURE"
    assert (Job.objects.get().state, effects()) == ("failed", {})


@shared_task(max_retries=0, name="tests.execution.reader")
def writes_to_a_reader(key):
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
    Effect.objects.create(key=key)


def test_a_server_that_takes_no_writes_is_not_the_bodys_error():
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's errors have codes")
    deliver(writes_to_a_reader.delay("a"))
    job = Job.objects.get()
    assert (job.state, job.node_losses) == ("ready", 1)


@shared_task(bind=True, atomic=False, max_retries=0)
def outlives_its_session(self, key, then):
    Effect.objects.create(key=key)
    end_session()
    if then == "checkpoint":
        self.checkpoint()


@pytest.mark.database
@pytest.mark.skipif(connection.vendor == "sqlite", reason="no server ends a connection")
@pytest.mark.parametrize("then", ["end", "checkpoint"])
def test_work_that_is_committed_is_not_done_again_because_its_session_ended(then):
    """The body waited for longer than the server, or a pooler, keeps an idle session: ten runs did all of it."""
    assert deliver(outlives_its_session.delay("a", then))[0] == "SUCCESS"
    job = Job.objects.get()
    assert (job.state, job.lease, job.node_losses, effects()) == ("succeeded", 1, 0, {"a": 1})


@shared_task(bind=True)
def tells_its_arguments(self, secret):
    return self.request.argsrepr, self.request.kwargsrepr


def test_a_call_says_how_its_arguments_are_shown():
    result = tells_its_arguments.apply_async(("hunter2",), argsrepr="('***',)", kwargsrepr="{}")
    assert deliver(result) == ("SUCCESS", ("('***',)", "{}"))


@shared_task
def returns(value):
    return value


def test_results_are_the_same_where_backslashes_escape():
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has standard_conforming_strings")
    value = {'a"b': "line\nline", "path": "back\\nslash 'quoted' 100%"}
    with connection.cursor() as cursor:
        cursor.execute("SET standard_conforming_strings = off")
    try:
        assert deliver(returns.delay(value)) == ("SUCCESS", value)
        assert Job.objects.get().result == value
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET standard_conforming_strings")


def test_a_server_that_refused_and_was_replaced_was_lost():
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's errors have codes")
    with pytest.raises(InternalError) as refused, connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        cursor.execute("UPDATE tests_effect SET note = ''")
    connection.close()
    assert databases.is_lost(refused.value, "default")


@pytest.mark.parametrize("how", ["fails", "retries", "snoozes"])
def test_a_run_reads_nothing_from_a_replica(second, settings, declare, how):
    settings.JOBS = {**settings.JOBS, "DATABASES": ["default"]}
    settings.DATABASE_ROUTERS = [Replica()]

    def body(self):
        if how == "retries":
            self.retry(countdown=60)
        raise Snooze(60) if how == "snoozes" else ValueError("x")

    result = declare(body=body, bind=True, max_retries=3 if how == "retries" else 0).delay()
    deliver(result)
    job = Job.objects.using("default").get(pk=result.id)
    assert job.state == ("failed" if how == "fails" else "scheduled")
    # What a receiver of a signal, or a caller, reads later comes from where the row is.
    assert Job.objects.using("default").only("task").get(pk=job.pk).state == job.state


@pytest.mark.parametrize("exc", [Snooze(60), Snooze(60, "later"), jobs.Busy("x"), jobs.Cancel("x")], ids=repr)
def test_what_a_body_raises_passes_between_processes(exc):
    """A stock task, too, may reach code that raises it; Celery's pool pickles it."""
    same = pickle.loads(pickle.dumps(exc))
    assert (type(same), str(same), vars(same)) == (type(exc), str(exc), vars(exc))


def test_a_hook_after_the_commit_that_asks_whether_to_go_on(declare):
    told = []

    def body(self):
        transaction.on_commit(self.checkpoint)

    with hearing(lambda job, action: told.append((job.pk, action))):
        result = declare(body=body, bind=True).delay()
        assert deliver(result)[0] == "SUCCESS"
    pk = Job.objects.get().pk
    assert told == [(pk, "started"), (pk, "succeeded")]
