"""Several bodies in one transaction, in this process: what becomes of each is what would become of it alone."""

from __future__ import annotations

import os
import time

import pytest
from celery import current_app, shared_task
from celery import signals as celery_signals
from celery.exceptions import SoftTimeLimitExceeded
from django.db import IntegrityError, connection, transaction

import jobs
from jobs import Snooze, signals
from jobs.conf import conf
from jobs.contrib.grouped import group
from jobs.contrib.grouped.runner import GroupingRunner
from jobs.lifecycle import transitions
from jobs.lifecycle.run import current_job, current_run
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Marker
from jobs.store import databases
from tests import tasks
from tests.helpers.driver import executed, prepares
from tests.helpers.harness import effects
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

#: What bodies, hooks and handlers did, in their order.
SEEN: list = []


def write(key):
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(bind=True, grouped=True)
def effect(self, key, how=""):
    write(key)
    SEEN.append(f"body {key}")
    if how:
        HOW[how](self, key)
    return key


@shared_task(grouped=True)
def empty(*args):
    pass


def _fails(self, key):
    raise ValueError(key)


def _fails_once(self, key):
    if self.request.retries == 0:
        raise self.retry(countdown=0)


def _strikes(self, key):
    if SEEN.count(f"body {key}") == 1:
        raise SoftTimeLimitExceeded()


def _rolls_back(self, key):
    try:
        with transaction.atomic():
            write(f"{key} not kept")
            raise IntegrityError
    except IntegrityError:
        SEEN.append(f"goes on {key}")


def _hooks(self, key):
    transaction.on_commit(lambda: SEEN.append(f"hook {key} of {current_job().args[0]}, {self.request.id}"))


def _bad_hook(self, key):
    def hook():
        raise RuntimeError(key)

    transaction.on_commit(hook)
    _hooks(self, key)


def _snoozes(self, key):
    if self.job.snoozes == 0:
        raise Snooze(0)


def _calls(self, key):
    effect.delay(f"{key} called")


def _conflicts(self, key):
    if SEEN.count(f"body {key}") == 1:
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40P01'; END $$")


HOW = {
    "fails": _fails,
    "retries": _fails_once,
    "strikes": _strikes,
    "rolls back": _rolls_back,
    "hooks": _hooks,
    "bad hook": _bad_hook,
    "snoozes": _snoozes,
    "calls": _calls,
    "conflicts": _conflicts,
    "replaces": lambda self, key: self.replace(empty.si()),
    "plans": lambda self, key: self.retry(countdown=0, throw=False) if self.request.retries == 0 else None,
    "closes": lambda self, key: connection.close(),
    "returns": lambda self, key: None,
}


@pytest.fixture
def runner(node, settings, monkeypatch):
    """As a process of a worker that knows how long these bodies take."""
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 100}
    monkeypatch.setattr("jobs.worker.runner.BATCH_TIME", 100.0)
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 60.0)
    worker_state.queues = [current_app.conf.task_default_queue]
    runner = GroupingRunner(current_app._get_current_object(), "here")
    runner._means = dict.fromkeys((effect.name, empty.name, tasks.effect.name), 0.001)
    runner._next = 100
    SEEN.clear()
    yield runner
    runner.slot.free()


@pytest.fixture
def groups(monkeypatch):
    """How many jobs each group committed, and why those did not that did not."""
    found: list = []
    run = group.run

    def note(members, using):
        done, error = run(members, using)
        found.append(len(done) or type(error).__name__)
        return done, error

    monkeypatch.setattr(group, "run", note)
    return found


def run_all(runner):
    while runner.run_batch():
        transitions.make_due("default", 100)


def enqueue(*hows, count=0):
    """A job for each: its key is its number."""
    effect.delay_many([(str(n), how) for n, how in enumerate([*hows, *[""] * count])])


def states():
    return {job.args[0]: job.state for job in Job.objects.filter(task=effect.name)}


def row_of(key):
    """As a queryset of its row."""
    return Job.objects.filter(pk=next(job.pk for job in Job.objects.filter(task=effect.name) if job.args[0] == key))


def test_a_group_is_one_commit(runner, groups):
    enqueue(count=50)
    assert runner.run_batch()
    assert groups == [50]
    assert effects() == {str(n): 1 for n in range(50)}
    jobs = Job.objects.all()
    assert {(job.state, job.lease, job.error) for job in jobs} == {("succeeded", 1, None)}
    assert {job.args[0]: job.result for job in jobs} == {str(n): str(n) for n in range(50)}
    assert all(job.started_at <= job.finished_at for job in jobs)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            rows = "SELECT xmin FROM jobs_job UNION ALL SELECT xmin FROM tests_effect"
            cursor.execute(f"SELECT count(DISTINCT xmin::text) FROM ({rows}) AS rows")
            assert cursor.fetchone() == (1,)
    assert not worker_state.at_work() or worker_state.at_work()[0].batch == 0


@shared_task(grouped=True)
def nested(key):
    """As bodies are written that know nothing of a transaction around them."""
    with transaction.atomic():
        write(key)


@pytest.mark.core
def test_a_group_sends_its_bodies_and_one_completion(runner, monkeypatch):
    prepares()
    runner._means[nested.name] = 0.001
    nested.delay_many([(str(n),) for n in range(20)])
    claimed = runner.take()
    with executed(monkeypatch) as statements:
        runner._run_all(claimed)
    assert effects() == {str(n): 1 for n in range(20)}
    statements = [sql for sql in statements if not sql.startswith("PREPARE")]
    # The bodies without a savepoint, and the completion of all; on others than PostgreSQL of each.
    assert len(statements) == 20 + (1 if connection.vendor == "postgresql" else 20), statements


@pytest.mark.core
@pytest.mark.parametrize(
    "how", ["fails", "retries", "strikes", "rolls back", "snoozes", "replaces", "plans", "closes", "conflicts"]
)
def test_one_body_that_does_not_simply_return(runner, groups, how):
    """The group rolls back, and each runs as it would without one: the others succeed once."""
    if how == "conflicts" and connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's own words")
    enqueue("", how, count=48)
    run_all(runner)
    assert isinstance(groups[0], str)
    expected = dict.fromkeys(map(str, range(50)), 1)
    if how in ("fails", "closes"):
        del expected["1"]
    assert effects() == expected
    wrong = {"1": "failed"} if how in ("fails", "closes") else {}
    assert states() == dict.fromkeys(map(str, range(50)), "succeeded") | wrong
    job = row_of("1").get()
    assert (job.retries, job.snoozes, job.crashes) == (how in ("retries", "plans"), how == "snoozes", 0)


def test_a_body_whose_savepoint_was_not_sent_does_not_go_on(runner, groups):
    """What it wrote is not undone as long as the group is not."""
    enqueue("", "rolls back")
    run_all(runner)
    assert groups == ["Alone"]
    assert SEEN.count("goes on 1") == 1


def test_a_job_that_is_asked_to_end_while_its_group_runs(runner, groups):
    enqueue(count=10)
    claimed = runner.take()
    transitions.ask_to_end(claimed[1].pk, "default")
    runner._run_all(claimed)
    run_all(runner)
    assert groups[0] == "LostLease"
    assert effects() == {str(n): 1 for n in range(10) if n != 1}
    assert states() == {str(n): "succeeded" for n in range(10)} | {"1": "cancelled"}


def test_a_lost_lease_of_one(runner, groups, monkeypatch):
    """Whoever has it now keeps it; the others are completed once."""
    enqueue(count=10)
    complete = group._complete

    def lose(done, *given):
        row_of("4").update(lease=7, token=7)
        return complete(done, *given)

    with monkeypatch.context() as patch:
        patch.setattr(group, "_complete", lose)
        claimed = runner.take()
        assert runner._run_together(claimed, 0, float("inf")) == 0
    assert groups == ["LostLease"]
    assert effects() == {}
    row_of("4").update(lease=7, token=7)
    runner._alone, runner._broken = 10, {}
    type(runner).__mro__[1]._run_all(runner, claimed)
    run_all(runner)
    assert effects() == {str(n): 1 for n in range(10) if n != 4}
    assert states() == {str(n): "succeeded" for n in range(10)} | {"4": "running"}


def test_hooks_run_after_the_commit_each_as_a_part_of_its_run(runner, groups):
    enqueue("hooks", "", "bad hook", "hooks")
    run_all(runner)
    assert groups == [4]
    ids = {job.args[0]: job.pk for job in Job.objects.all()}
    bodies, hooks = SEEN[:4], SEEN[4:]
    assert bodies == [f"body {n}" for n in range(4)]
    # A hook that raised ends those of its own body, and of no other.
    assert hooks == [f"hook {n} of {n}, {ids[n]}" for n in "03"]
    assert set(states().values()) == {"succeeded"}


def test_calls_in_a_body_are_part_of_the_group(runner, groups):
    enqueue("calls", "", "calls")
    run_all(runner)
    assert effects() == dict.fromkeys(("0", "1", "2", "0 called", "2 called"), 1)
    parents = {job.args[0]: job.parent_id for job in Job.objects.exclude(parent_id=None)}
    ids = {job.args[0]: job.pk for job in Job.objects.all()}
    assert parents == {"0 called": ids["0"], "2 called": ids["2"]}


def test_what_is_told_is_told_after_the_commit_in_order(runner):
    told: list = []

    def tell(name):
        def receive(sender, **given):
            args = given["job"].args if "job" in given else sender.request.args
            told.append((name, args[0], Job.objects.filter(state="succeeded").count()))

        return receive

    connected = [
        (signals.started, tell("started")),
        (signals.succeeded, tell("succeeded")),
        (celery_signals.task_prerun, tell("prerun")),
        (celery_signals.task_success, tell("success")),
        (celery_signals.task_postrun, tell("postrun")),
    ]
    for signal, receive in connected:
        signal.connect(receive, weak=False)
    try:
        enqueue(count=3)
        run_all(runner)
    finally:
        for signal, receive in connected:
            signal.disconnect(receive)
    assert told == [("prerun", str(n), 0) for n in range(3)] + [
        (name, str(n), 3) for n in range(3) for name in ("started", "succeeded", "success", "postrun")
    ]


def test_celery_hears_the_end_of_what_it_heard_the_beginning_of(runner):
    told: list = []
    begins = lambda task_id, **given: told.append(("prerun", task_id))  # noqa: E731
    ends = lambda task_id, state, **given: told.append((state, task_id))  # noqa: E731
    celery_signals.task_prerun.connect(begins, weak=False)
    celery_signals.task_postrun.connect(ends, weak=False)
    try:
        enqueue("", "fails")
        run_all(runner)
    finally:
        celery_signals.task_prerun.disconnect(begins)
        celery_signals.task_postrun.disconnect(ends)
    first, second = (str(row_of(n).get().pk) for n in "01")
    rolled_back = [("prerun", first), ("prerun", second), (None, first), (None, second)]
    alone = [("prerun", first), ("SUCCESS", first), ("prerun", second), ("FAILURE", second)]
    assert told == rolled_back + alone


def test_nothing_of_a_body_is_left_for_the_next_one(runner):
    enqueue(count=3)
    run_all(runner)
    assert (current_run(), current_app.current_worker_task, effect.request_stack.top) == (None, None, None)


def test_after_a_group_that_rolled_back_its_task_runs_alone_for_a_moment(runner, groups):
    enqueue("", "fails", "", "")
    run_all(runner)
    enqueue(count=4)
    runner._means[effect.name], runner._next = 0.001, 100
    runner._broken[effect.name] = 1, float("inf")
    run_all(runner)
    assert groups == ["ValueError"]
    runner._broken[effect.name] = 1, 0.0
    enqueue(count=4)
    runner._next = 100
    run_all(runner)
    assert groups == ["ValueError", 4]
    assert effect.name not in runner._broken


@shared_task(grouped=True, idempotency_key="grouped:{key}")
def once(key):
    write(key)
    return key


@pytest.mark.core
def test_each_body_leaves_the_marker_of_its_key(runner, groups):
    runner._means[once.name] = 0.001
    once.delay_many([(str(n),) for n in range(10)])
    assert runner.run_batch()
    assert groups == [10]
    assert effects() == {str(n): 1 for n in range(10)}
    assert Marker.objects.count() == 10


def test_a_duplicate_runs_alone_and_has_the_result_of_the_first(runner, groups):
    """Both in one group, and one that was there before."""
    runner._means[once.name] = 0.001
    once.delay_many([(key,) for key in "aba"])
    run_all(runner)
    assert groups[0] == "Alone"
    once.delay_many([(key,) for key in "ac"])
    runner._means[once.name], runner._next = 0.001, 100
    run_all(runner)
    assert effects() == {"a": 1, "b": 1, "c": 1}
    assert [job.result for job in Job.objects.order_by("pk")] == ["a", "b", "a", "a", "c"]


def test_a_key_that_another_run_has_does_not_hold_up_a_group(runner, groups):
    """The group gives up soon; alone its job waits as long as ever, and comes again."""
    if connection.vendor != "postgresql":
        pytest.skip("one writer, or a wait of a second at least")
    runner._means[once.name] = 0.001
    once.delay_many([(key,) for key in "abc"])
    with databases.apart("default") as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        columns, values = "key, kind, fingerprint, created_at", "'grouped:b', 'task', '', now()"
        cursor.execute(f"INSERT INTO jobs_marker ({columns}) VALUES ({values})")
        claimed, began = runner.take(), time.monotonic()
        assert runner._run_together(claimed, 0, began) == 0
        assert time.monotonic() - began < conf().MARKER_WAIT
        cursor.execute("ROLLBACK")
    assert groups == ["Busy"]
    runner._run_all(claimed)
    assert effects() == {"a": 1, "b": 1, "c": 1}


ALONE = {
    "with an expiry": {"expires": 3600},
    "with a link": {"link": empty.si()},
    "of another task": {},
}


@pytest.mark.parametrize("why", ALONE)
def test_what_runs_alone_in_the_middle_of_a_claim(runner, groups, why):
    enqueue(count=3)
    (effect if ALONE[why] else tasks.effect).apply_async(("alone",), **ALONE[why])
    enqueue(count=2)
    assert runner.run_batch()
    assert groups == [3, 2]
    assert effects()["alone"] == 1


@pytest.mark.parametrize("columns", [{"retries": 1}, {"crashes": 1}, {"node_losses": 1}, {"snoozes": 1}, {"lease": 2}])
def test_a_job_that_was_in_trouble_runs_alone(runner, groups, columns):
    enqueue(count=5)
    row_of("2").update(**columns)
    run_all(runner)
    assert groups == [2, 2]
    assert effects() == dict.fromkeys("01234", 1)


def test_a_group_takes_no_more_time_than_it_may(runner, groups, monkeypatch):
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 4.5)
    monkeypatch.setattr(runner, "_expected", lambda task: 1.0)
    empty.delay_many([()] * 10)
    assert runner.run_batch()
    assert groups == [4, 4, 2]


def test_a_commit_that_takes_long_is_no_reason_to_run_alone(runner, groups, monkeypatch):
    """Alone a job takes as long as its commit; what counts is how long its body takes."""
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 0.5)
    runner._means[empty.name] = 0.4
    empty.delay_many([()] * 20)
    assert runner.run_batch()
    assert groups == [2, 18]


def test_bodies_that_take_long_run_alone(runner, groups, monkeypatch):
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 0.02)
    runner._means[empty.name] = runner._bodies[empty.name] = 0.015
    monkeypatch.setattr(runner, "_learn", lambda *given: None)
    empty.delay_many([()] * 4)
    assert runner.run_batch()
    assert groups == []


def test_a_group_of_relaxed_tasks_is_relaxed_and_of_others_is_not(runner, monkeypatch):
    seen: list = []
    succeed_all = transitions.succeed_all

    def note(rows, is_synced):
        seen.append(is_synced)
        return succeed_all(rows, is_synced)

    monkeypatch.setattr(transitions, "succeed_all", note)
    for is_synced in (True, False):
        monkeypatch.setattr(empty, "is_synced", is_synced)
        empty.delay_many([()] * 4)
        assert runner.run_batch()
    enqueue("hooks", "hooks")
    monkeypatch.setattr(effect, "is_synced", False)
    assert runner.run_batch()
    assert seen == [True, False, True]


async def awaits():
    pass


@pytest.mark.parametrize(
    "options",
    [{"atomic": False}, {"durable": True}, {"lock": "k"}, {"body": awaits}],
    ids=lambda options: next(iter(options)),
)
def test_what_has_no_transaction_to_share_is_refused_at_the_declaration(declare, options):
    with pytest.raises(TypeError, match="grouped=True and .* do not go together: .*leave"):
        declare(grouped=True, **options)


def test_a_worker_groups():
    assert jobs.extensions.instead(jobs.worker.runner.Runner) is GroupingRunner


def test_tags_keep_no_job_out_of_a_group(runner, groups):
    with jobs.tagged(user=5):
        enqueue(count=5)
    runner.run_batch()
    assert groups == [5]
