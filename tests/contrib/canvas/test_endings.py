"""Who waits for the end of a job hears of it, and once: what a first draft of the follow-ups got wrong."""

from __future__ import annotations

import sqlite3
import threading
import time

import celery
import pytest
from celery import chain, chord, group, shared_task, signals, signature
from celery.backends.cache import CacheBackend
from celery.exceptions import SoftTimeLimitExceeded
from django.core.management import call_command
from django.db import connection, transaction

from jobs import Task
from jobs import signals as job_signals
from jobs.contrib.operations import by_hand
from jobs.lifecycle import transitions
from jobs.models import ChordPart, Job, Node
from tests import tasks
from tests.helpers.concurrency import cut
from tests.helpers.harness import Worker, claim, effects, in_body, run, run_ready, wait_ended
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

effect, fails, gather, passes = tasks.effect, tasks.fails, tasks.gather, tasks.passes


class Unbegun(Task):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        raise ValueError("not begun")


@shared_task(base=Unbegun)
def unbegun():
    pass


@shared_task
def breaks_the_transaction(request, exc, traceback):
    Effect.objects.create(pk=None, key=None)


@shared_task(bind=True)
def lacks_arguments(self, request, exc, traceback):
    pass


@shared_task
def calls_the_task(request, exc, traceback):
    effect(passes("inline"))


@shared_task(bind=True, unique="{key}")
def unique_and_replaced(self, key):
    return self.replace(passes.s(key))


@shared_task(bind=True, unique="by others")
def unique_and_replaced_by(self, others):
    return self.replace(signature(others))


@shared_task(bind=True, idempotency_key="{key}")
def marked_and_replaced(self, key):
    return self.replace(passes.s(key))


def due():
    Job.objects.filter(state="scheduled").update(run_at="2026-01-01T00:00Z")
    run_ready()


def test_what_is_not_begun_ends_once_and_is_told(node):
    told = []

    def hear(job, **kwargs):
        told.append(job.task)

    unbegun.apply_async(link_error=effect.si("errback"))
    job_signals.failed.connect(hear)
    try:
        run_ready()
    finally:
        job_signals.failed.disconnect(hear)
    assert effects() == {"errback": 1}
    assert told == [unbegun.name]


def test_an_errback_that_breaks_its_transaction_breaks_nothing_else(node):
    fails.apply_async(("x",), link_error=[breaks_the_transaction.s(), effect.si("second")])
    run_ready()
    assert effects() == {"second": 1}


def test_an_errback_that_breaks_its_transaction_fails_no_part_of_a_chord(node):
    chord([fails.s("x"), passes.s(1)], gather.s("body").on_error(breaks_the_transaction.s())).apply_async()
    run(claim(Job.objects.get(task=fails.name).pk))
    run(claim(Job.objects.get(task="jobs.ended").pk))
    run_ready()
    assert Job.objects.get(task=passes.name).state == "succeeded"


def test_an_errback_that_cannot_be_called_keeps_no_chord_open(node):
    part = fails.si("x").on_error(lacks_arguments.s())
    last = chord([part, passes.si(1)], gather.s("body").on_error(effect.si("errback"))).apply_async()
    for _ in range(3):
        due()
    assert (effects(), last.state) == ({"errback": 1}, "FAILURE")
    # It is tried again by itself, and people see it.
    [left] = Job.objects.filter(task="jobs.ended", state="scheduled")
    assert "missing" in left.error["message"]


def test_an_errback_may_call_the_task_itself(node):
    passes.apply_async((1,), link_error=calls_the_task.s())
    transitions.cancel(Job.objects.get().pk, "default")
    run_ready()
    assert effects() == {"inline": 1}


def test_a_chord_over_two_databases(node, second):
    Node.objects.using(second).create(pk=node.pk, hostname="here", pid=1)
    chord([passes.s(1).set(using=second), passes.s(2)], gather.s("body")).apply_async()
    while ready := [job for alias in ("default", second) for job in Job.objects.using(alias).filter(state="ready")]:
        for job in ready:
            run(claim(job.pk))
    assert effects() == {"body": 1}


def test_a_chord_tells_of_its_failure_once_however_many_parts_are_run_again(node):
    header = [fails.s("x"), tasks.fails_first.s("a"), tasks.fails_first.s("b")]
    chord(header, gather.s("body").on_error(effect.si("errback"))).apply_async()
    run_ready()
    for job in Job.objects.filter(state="failed", task=tasks.fails_first.name):
        by_hand.retry_by_hand(job.pk, "default")
    run_ready()
    assert effects() == {"errback": 1}


def test_a_stock_part_is_not_sent_before_the_rows_of_its_chord_are_committed(node):
    sent = []

    def note(sender, **kwargs):
        sent.append((sender, connection.in_atomic_block))

    signals.before_task_publish.connect(note)
    try:
        with transaction.atomic():
            chord([tasks.stock.s("s"), passes.s(2)], gather.s("body")).apply_async()
            assert tasks.stock.name not in dict(sent)
        run_ready()
    finally:
        signals.before_task_publish.disconnect(note)
    assert dict(sent)[tasks.stock.name] is False
    assert ChordPart.objects.filter(ok=True).count() == 1


def test_a_result_backend_that_is_away_loses_no_errback(node, memory, monkeypatch):
    passes.apply_async((1,), link_error=effect.si("errback"))
    transitions.cancel(Job.objects.get().pk, "default")

    def away(*args, **kwargs):
        raise ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(CacheBackend, "store_result", away)
        run_ready()
    assert effects() == {}
    due()
    assert effects() == {"errback": 1}


def test_a_message_is_sent_again_if_the_broker_says_nothing(node, monkeypatch):
    passes.apply_async((1,), link=tasks.stock.si("s"))
    run(claim(Job.objects.get().pk))
    app = passes.app

    def hangs(*args, **kwargs):
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patch:
        patch.setattr(app, "send_task", hangs)
        run_ready()
    assert Job.objects.get(task="jobs.send").state == "scheduled"


def test_a_job_is_not_deleted_before_its_end_is_told(node):
    fails.apply_async(("x",), link_error=effect.si("errback"))
    run(claim(Job.objects.get().pk))
    call_command("jobs", "prune", "--once")
    from jobs.contrib.pruning import prune

    assert prune.delete([Job.objects.get(task=fails.name).pk], "default") == 0
    run_ready()
    assert effects() == {"errback": 1}
    assert prune.delete([Job.objects.get(task=fails.name).pk], "default") == 1


@shared_task(atomic=False)
def naps(key):
    time.sleep(0.5)


def test_a_database_that_is_busy_when_the_body_has_returned_does_not_fail_the_job(node, settings):
    """``atomic=False``: the follow-ups have a transaction of their own, and cannot begin it."""
    if connection.vendor != "sqlite":
        pytest.skip("SQLite has one writer")
    naps.apply_async(("a",), link=effect.si("b"))
    job = claim(Job.objects.get().pk)
    held, path = threading.Event(), connection.settings_dict["NAME"]

    def hold():
        raw = sqlite3.connect(path, timeout=5, isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        held.set()
        time.sleep(3)
        raw.execute("ROLLBACK")
        raw.close()

    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 500")
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(5)
    run(job)
    holder.join()
    job.refresh_from_db()
    assert (job.state in ("ready", "scheduled", "succeeded"), job.retries) == (True, 0)


def test_a_replaced_job_keeps_its_result_when_its_replacement_is_gone(node):
    result = tasks.replaces.delay("a", passes.s("b"))
    run_ready()
    Job.objects.exclude(pk=result.id).delete()
    assert tasks.replaces.AsyncResult(result.id).get(timeout=2) == "b"


def test_a_replaced_job_keeps_its_result_when_its_node_is_gone(node):
    result = tasks.replaces.delay("a", passes.s("b"))
    run_ready()
    Node.objects.all().delete()
    assert tasks.replaces.AsyncResult(result.id).get(timeout=2) == "b"


def test_a_chain_that_replaces_a_job_and_fails_is_its_failure(node):
    result = tasks.replaces.delay("a", chain(fails.si("x"), passes.s()))
    run(claim(result.id))
    assert result.state == "PENDING"
    run_ready()
    assert result.state == "FAILURE"
    with pytest.raises(LookupError):
        result.get(timeout=2)


def test_a_job_of_an_idempotency_key_is_not_replaced(node):
    result = marked_and_replaced.delay("x")
    run(claim(result.id))
    assert "idempotency_key" in Job.objects.get().error["message"]


def test_the_stand_in_of_a_replaced_job_ends_as_the_replacement_does(node):
    unique_and_replaced.apply_async(("k",))
    chain(unique_and_replaced.si("k"), gather.s("after")).apply_async()
    run_ready()
    due()
    due()
    assert Job.objects.get(task=gather.name).result == "k"


@pytest.mark.parametrize(
    "others",
    [
        lambda: chain(passes.si(1), fails.si("x"), passes.si(2)),
        lambda: chain(passes.si(1), chord([fails.si("x"), passes.si(2)], gather.s("body"))),
    ],
    ids=["chain", "chord"],
)
def test_the_stand_in_of_a_replaced_job_does_not_wait_for_a_replacement_that_never_comes(others, node):
    unique_and_replaced_by.apply_async((others(),))
    last = chain(unique_and_replaced_by.si(others()), gather.s("after")).apply_async()
    for _ in range(3):
        due()
    stand_in = Job.objects.get(task="jobs.same")
    assert (stand_in.state, stand_in.error["message"]) == ("failed", "x")
    assert last.state == "FAILURE"


def test_the_stand_in_of_a_job_that_a_group_replaced_has_the_results(node):
    others = group(passes.si(1), passes.si(2))
    first = unique_and_replaced_by.apply_async((others,))
    chain(unique_and_replaced_by.si(others), gather.s("after")).apply_async()
    for _ in range(3):
        due()
    assert Job.objects.get(pk=first.id).result == [1, 2]
    assert [job.result for job in Job.objects.filter(task=gather.name)] == [[1, 2]]


def test_a_frozen_signature_survives_a_dead_connection(node):
    if connection.vendor != "postgresql":
        pytest.skip("no connection to lose")
    twice = effect.s("a")
    twice.freeze()
    twice.apply_async()
    cut()
    twice.apply_async()
    assert Job.objects.count() == 2


def test_a_job_that_reached_a_limit_is_a_failure_to_the_result_backend(node, memory, settings):
    settings.JOBS = {**settings.JOBS, "MAX_SNOOZES": 1}
    result = tasks.snoozes.delay("a", 1)
    run_ready()
    assert result.state == "FAILURE"


def test_our_own_jobs_keep_their_options(settings):
    from jobs.conf import task_options

    settings.JOBS = {**settings.JOBS, "TASKS": {"*": {"atomic": False}}}
    assert task_options("jobs.ended") == {}
    assert task_options("shop.tasks.x") == {"atomic": False}


def test_why_says_that_a_job_was_replaced(node, capsys):
    result = tasks.replaces.delay("a", passes.s("b"))
    run_ready()
    call_command("jobs", "why", result.id)
    assert "was replaced" in capsys.readouterr().out


@pytest.mark.core
def test_the_errback_of_a_killed_job_runs(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1):
        result = tasks.gated.apply_async(("a", str(started), str(gate)), link_error=tasks.effect.si("told"))
        in_body(result.id, started)
        call_command("jobs", "kill", result.id)
        wait_ended(result.id)
        wait_for(lambda: effects() == {"told": 1}, 20, f"the errback ran: {effects()}")


@shared_task(base=celery.Task)
def stock_adds(x, y):
    return x + y


@pytest.mark.core
def test_a_chord_of_stock_tasks_with_a_job_as_its_body():
    """Celery's own ``chord_unlock`` joins it."""
    with Worker(concurrency=2):
        joined = chord([stock_adds.s(1, 1), stock_adds.s(2, 2)], tasks.gives_back.s()).apply_async()
        assert joined.get(timeout=30) == [[2, 4]]


P, F = tasks.passes, tasks.fails
#: Parts of a chord that fail before a group, or inside of what replaces them.
FAILING = {
    "before a group": lambda: chain(F.si("x"), group(P.s(), P.s())),
    "before two groups": lambda: chain(F.si("x"), group(P.s(), P.s()), group(P.s(), P.s())),
    "in a group of chains": lambda: chain(P.si("x"), group(chain(F.s(), group(P.s(), P.s())), P.s())),
    "replaced by one that fails": lambda: chain(tasks.replaces.si("r", F.si("x")), group(P.s(), P.s())),
    "replaced by a group": lambda: chain(tasks.replaces.si("r", group(F.si("x"), P.si("y"))), P.s()),
    "replaced by a chord": lambda: chain(
        tasks.replaces.si("r", chord([F.si("x"), P.si("z")], chain(P.s(), group(P.s(), P.s())))), P.s()
    ),
}


@pytest.mark.database
@pytest.mark.parametrize("how", FAILING)
def test_a_chord_hears_of_each_part_that_fails(node, how):
    result = chord([FAILING[how](), P.si("c")], P.s().on_error(tasks.effect.si("errback"))).apply_async()
    run_ready()
    run_ready()
    assert result.state == "FAILURE"
    assert effects()["errback"] == 1


#: Bodies of chords, each with an errback.
BODIES = {
    "a group, and what follows it": lambda then, errback: chain(group(then, then), then).on_error(errback),
    "a group, and two that follow it": lambda then, errback: chain(group(then, then), then, then).on_error(errback),
    "a chord": lambda then, errback: chord([then, then], then.on_error(errback)),
    "a task with the errback, and another": lambda then, errback: then.on_error(errback) | P.s(),
}


@pytest.mark.database
@pytest.mark.parametrize("how", BODIES)
def test_a_body_that_is_not_called_fails_and_calls_its_errback(node, how):
    result = (group(F.si("x"), P.si("y")) | BODIES[how](P.s(), tasks.effect.si("errback"))).apply_async()
    run_ready()
    run_ready()
    assert result.state == "FAILURE"
    assert effects() == {"errback": 1}


@pytest.mark.database
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_errback_of_a_chain_is_called_if_a_group_replaces_a_step_and_fails(node, is_whole):
    errback, first = tasks.effect.si("errback"), tasks.replaces.si("r", group(F.si("x"), P.si("y")))
    steps = chain(first, P.s()).on_error(errback) if is_whole else chain(first.on_error(errback), P.s())
    steps.apply_async()
    run_ready()
    run_ready()
    assert effects()["errback"] == 1


@pytest.mark.database
def test_groups_without_tasks_keep_no_chord_open(node):
    empty = chain(P.si("x"), group([group([]), group([])]))
    chord([empty, chain(P.si("y"), group([P.si(3), P.si(4)]))], P.s()).delay()
    run_ready()
    assert [[], [3, 4]] in Job.objects.filter(task=P.name).values_list("result", flat=True)
    assert not Job.objects.exclude(state="succeeded").exists()
