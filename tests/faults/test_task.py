"""The task itself goes wrong."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest
from celery import current_app, shared_task
from django.db import OperationalError, connection

from jobs.contrib.operations import by_hand
from jobs.models import Job
from tests import tasks
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, WORK
from tests.faults.worker import Worker, workers
from tests.helpers import misbehaving
from tests.helpers.servers import wait_for
from tests.models import Effect, Order


@pytest.mark.parametrize("how", ["deadline", "nul", "unspeakable"])
@guard(Without("jobs.models.values:scrub", "text"), case="nul")
@guard(Without("jobs.execution.finish:entry", "str(exc)", call="safe_repr"), case="unspeakable")
def test_exception_rolls_back_and_is_kept(ledger, how, settings):
    """Also one that cannot be pickled and has no text, and one whose text no database stores.

    Guard: the error's text is scrubbed, and a failing ``str()`` survived.
    """
    # A deadline would be tried again.
    settings.JOBS = {**settings.JOBS, "RETRY": None}
    failing = ledger.enqueue(100, misbehaving.misbehaves, kwargs={"how": how})
    ledger.enqueue(200)
    with workers(2):
        ledger.check(within=WORK, otherwise=dict.fromkeys(failing, "failed"))
    assert all(error["type"] and error["traceback"] for error in failed().values_list("error", flat=True))


@guard(Without("jobs.contrib.operations.by_hand:COUNTS", "()"))
def test_retries_exhausted_and_replayed(ledger, tmp_path):
    """Kept in ``failed`` with every attempt's error. Replayed too early it has all attempts again, and fails again;
    replayed when the cause is gone, it succeeds once.

    Guard: a replay sets the counts to zero, and keeps the lease.
    """
    cured = tmp_path / "cured"
    exhausted = ledger.enqueue(100, tasks.gives_up, kwargs={"cured": str(cured)})
    ledger.enqueue(200)
    with workers(2):
        ledger.check(within=WORK, otherwise=dict.fromkeys(exhausted, "failed"))
        assert {len(errors) for errors in failed().values_list("errors", flat=True)} == {3}
        replay(failed())
        ledger.check(within=WORK, otherwise=dict.fromkeys(exhausted, "failed"))
        assert {len(errors) for errors in failed().values_list("errors", flat=True)} == {6}
        cured.touch()
        replay(failed())
        ledger.check(within=WORK)


@shared_task
def returns_nonsense(key):
    Effect.objects.create(key=key, pid=os.getpid())
    return {1: {2, 3}, "lock": threading.Lock(), "text": "a\0b \ud800"}


@guard(Without("jobs.execution.finish:storable", "result"))
def test_result_that_cannot_be_stored(ledger):
    """The work is done: the job succeeds, and keeps the result's repr.

    Guard: what is no JSON is kept as its repr.
    """
    ledger.enqueue(100, returns_nonsense)
    ledger.enqueue(200)
    with workers(2):
        ledger.check(within=WORK)
    results = Job.objects.filter(task__endswith="nonsense").values_list("result", flat=True)
    assert all("lock" in result["__value__"] for result in results)


@shared_task(atomic=False)
def leaves_its_transaction(key):
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Effect.objects.create(key=key)


@shared_task(atomic=False)
def loses_its_link(key):
    Effect.objects.create(key=key)
    with suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@guard("jobs.store.databases:tidy")
@guard(Without("jobs.execution.pipeline:look_after", "False", call="databases.has_transaction"))
@guard(Without("jobs.execution.pipeline:look_after", "True", call="databases.is_idle"))
def test_connection_left_behind(ledger):
    """A body switches autocommit off, or begins a transaction, and returns: its work is rolled back, its job failed,
    and the next one is well. One that only lost its link, and returns, has done its work.

    Guard: what a body leaves behind is looked at, and a connection that is busy after a run is dropped.
    """
    open_ended = ledger.enqueue(50, tasks.leaves_autocommit_off) + ledger.enqueue(50, leaves_its_transaction)
    ledger.enqueue(20, loses_its_link)
    ledger.enqueue(200)
    with workers(2):
        ledger.check(within=WORK, otherwise=dict.fromkeys(open_ended, "failed"))
    assert set(failed().values_list("error__type", flat=True)) == {"ProgrammingError"}
    assert {len(errors) for errors in failed().values_list("errors", flat=True)} == {1}
    assert set(Job.objects.values_list("retries", "node_losses", "crashes")) == {(0, 0, 0)}


@pytest.mark.quick
@guard(Without("jobs.contrib.unknown_tasks.parking:put_aside", "False"))
def test_unknown_task_during_a_rolling_deploy(ledger):
    """Half of the workers do not know the new task yet, and claim its jobs as well.

    Guard: a job of an unknown task is put behind the others, and counts nowhere.
    """
    ledger.enqueue(300)
    with Worker(JOBS_TEST_FORGET="tests.tasks.effect") as old:
        old.said("is unknown here")
        with Worker():
            ledger.wait_effects(50)
            assert old.stop() == 0
            ledger.check(within=WORK)
    assert set(Job.objects.values_list("node_losses", "crashes", "retries")) == {(0, 0, 0)}


@guard(Without("jobs.lifecycle.transitions:fail", "hand_back(job, 1.0)"))
def test_arguments_of_an_older_signature(ledger):
    """Enqueued by yesterday's code, run by today's: failed at once, with an error that says why, and replayable.

    Guard: a ``TypeError`` is the body's own failure.
    """
    old = ledger.enqueue(100)
    for job in Job.objects.all():
        Job.objects.filter(pk=job.pk).update(args=[*job.args, "note", "an argument that is gone"])
    ledger.enqueue(200)
    with workers(2):
        ledger.check(within=WORK, otherwise=dict.fromkeys(old, "failed"))
    assert set(failed().values_list("error__type", "lease")) == {("TypeError", 1)}


@guard(Without("jobs.contrib.messages.receiving:receive", "task.run(*args, **kwargs)"))
def test_messages_sent_by_name(ledger):
    """From another service, or from before the switch: jobs as all others, each delivered twice.

    Guard: a message without a row is adopted, and its copy finds the row.
    """
    for number in range(300):
        order = Order.objects.create(key=f"foreign-{number}", job=f"00000000-0000-4000-8000-{number:012}")
        for _ in range(2):
            current_app.send_task("tests.tasks.effect", (order.key,), task_id=str(order.job))
    with workers(2):
        wait_for(lambda: Job.objects.count() == 300, LOST_CHILD, "all adopted")
        ledger.check(within=LOST_CHILD)


@guard(Without("jobs.contrib.messages.receiving:receive", call="finish.let_end"))
def test_process_ended_while_it_receives(ledger, tmp_path):
    """A SIGTERM before the row of a message sent by name is committed: the broker has the message again.

    Guard: an error in front of the shutdown does not hide it.
    """
    marker = tmp_path / "once"
    order = Order.objects.create(key="foreign", job="00000000-0000-4000-8000-000000000000")
    current_app.send_task("tests.tasks.effect", (order.key,), task_id=str(order.job))
    ledger.enqueue(300)
    with Worker(JOBS_TEST_ENDS_IN_ADOPTION=str(marker)):
        wait_for(lambda: Job.objects.filter(pk=order.job).exists(), LOST_CHILD, "it is adopted")
        assert marker.exists()
        ledger.check(within=LOST_CHILD)


def replay(jobs) -> None:
    for key in list(jobs.values_list("pk", flat=True)):
        assert by_hand.retry_by_hand(key, "default")


def failed():
    return Job.objects.filter(state="failed")
