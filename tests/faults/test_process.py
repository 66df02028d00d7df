"""One process of a worker dies, or does not come to an end."""

from __future__ import annotations

import os
import time

import pytest
from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection

from jobs.models import Job
from tests import tasks
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, LOST_WORKER
from tests.faults.manner import again
from tests.faults.worker import Worker, workers
from tests.helpers import misbehaving
from tests.helpers.servers import wait_for
from tests.models import Effect

#: The supervisor finishes what its process died with; and behind it, it gives back what no process has.
FINISH_DEAD = "jobs.maintenance.rescue:OwnJobs.finish_dead"
ORPHANS = "jobs.maintenance.rescue:OwnJobs.hand_back_orphans"


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_commit", "after_completion", "after_commit"])
@guard(FINISH_DEAD, ORPHANS, case="after_claim")
@guard(FINISH_DEAD, ORPHANS, case="after_completion")
def test_process_killed_at(ledger, point):
    """SIGKILL in each phase of a run.

    Guard: the worker state of what each process runs, and behind it the look for what no process has.
    """
    ledger.enqueue(300)
    with Worker(sync=f"{point}=kill", wait=False) as worker, Worker():
        worker.reached(point)
        ledger.check(within=LOST_CHILD)
    assert sum(Job.objects.values_list("crashes", flat=True)) <= 1


@guard("jobs.maintenance.rescue:rescue_all")
def test_main_process_killed(ledger):
    """And with it the worker, in the middle of a body. Its supervisor lives, and says so.

    Guard: the supervisor signs off, and gives the jobs of a dead node back.
    """
    ledger.enqueue(300)
    with Worker(sync="before_commit=pause") as worker:
        worker.reached("before_commit")
        with Worker():
            worker.main.kill()
            ledger.check(within=LOST_WORKER)
    assert sum(Job.objects.values_list("crashes", flat=True)) == 0


@pytest.mark.quick
@pytest.mark.parametrize("how", ["segfault", again("abort"), "ended", "ended_in_conflict"])
@guard(Without("jobs.lifecycle.transitions:crash", "lose(job, error, limit)"))
@guard(Without("jobs.execution.finish:chain", "iter([exc])"), case="ended")
@guard(Without("jobs.execution.pipeline:_came_of", call="finish.shutdown_behind"), case="ended_in_conflict")
def test_a_body_that_kills_its_process_now_and_then(ledger, tmp_path, how):
    """The crash of one is not the crash of its neighbours, and the next time it goes well.

    Guard: crashes count only the body whose process died. A SIGTERM leaves the body before it ends the process: a loss,
    even where something else is raised in front of it, were it a conflict.
    """
    fragile = ledger.enqueue(5, misbehaving.misbehaves, kwargs={"how": how, "marker": str(tmp_path / "once")})
    ledger.enqueue(300)
    with Worker(concurrency=4):
        ledger.check(within=LOST_CHILD)
    own, others = (Job.objects.filter(task__endswith=f".{name}") for name in ("misbehaves", "effect"))
    assert len(own) == len(fragile)
    assert set(own.values_list("crashes", "node_losses")) == {(0, 1) if how.startswith("ended") else (1, 0)}
    assert set(others.values_list("crashes", "node_losses")) == {(0, 0)}


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("where", ["rollback", "function"])
@guard(Without("jobs.store.databases:roll_back", call="_rollback"), case="rollback")
@guard(Without("jobs.execution.finish:shutdown_behind", call="SystemExit"), case="function")
def test_process_ended_inside_sqlite(ledger, tmp_path, where):
    """A SIGTERM between the failure of a body and its ROLLBACK, or in a function that SQLite calls.

    Guard: a failed body is rolled back before Django's cleanup; what SQLite keeps to itself is a shutdown all the same.
    """
    options = {"how": f"ended_in_{where}", "marker": str(tmp_path / "once")}
    fragile = ledger.enqueue(5, misbehaving.misbehaves, kwargs=options)
    ledger.enqueue(300)
    with Worker(concurrency=4):
        ledger.check(within=LOST_CHILD)
    assert 0 < Job.objects.filter(node_losses__gt=0).count() <= len(fragile)
    assert not Job.objects.filter(crashes__gt=0).exists()


@pytest.mark.parametrize("how", ["segfault", again("abort")])
@guard(Without("jobs.lifecycle.transitions:wait", "False", clause="limit is not None"))
def test_poison_ends_failed(ledger, how):
    """A body that always kills its process, among innocent ones.

    Guard: a job that has crashed ``max_crashes`` times ends ``failed``.
    """
    poison = ledger.enqueue(5, misbehaving.misbehaves, kwargs={"how": how})
    ledger.enqueue(300)
    with workers(2):
        ledger.check(within=2 * LOST_CHILD, otherwise=dict.fromkeys(poison, "failed"))
    assert set(Job.objects.filter(state="failed").values_list("crashes", "error__type")) == {(3, "WorkerLostError")}


@pytest.mark.parametrize("how", ["memory", "exit", "recursion"])
@guard(Without("jobs.execution.finish:_meant", "exc", call="for_celery"), case="memory")
@guard(Without("jobs.execution.finish:_meant", "exc", call="for_celery"), case="exit")
def test_an_exception_that_ends_a_process_ends_only_the_job(ledger, how):
    """``MemoryError`` and ``SystemExit`` out of a stock task stop the worker, or look like its death.

    Guard: what leaves a body is translated.
    """
    failing = ledger.enqueue(20, misbehaving.misbehaves, kwargs={"how": how})
    ledger.enqueue(300)
    with Worker() as worker:
        pool = {child.pid for child in worker.children}
        ledger.check(within=LOST_CHILD, otherwise=dict.fromkeys(failing, "failed"))
        assert worker.main.is_alive
        assert {child.pid for child in worker.children} == pool
        assert "Unrecoverable" not in worker.text()
    assert set(Job.objects.filter(state="failed").values_list("crashes", "lease")) == {(0, 1)}


@pytest.mark.parametrize("where", ["python", "query", "commit"])
@guard(FINISH_DEAD, case="query")
@guard("jobs.maintenance.rescue:OwnJobs.expect_end", case="python")
def test_hard_time_limit(ledger, database, where):
    """The process is killed in mid-body, while the database works for it, or while it commits.

    Guard: the worker state says what each process runs; the completion is fenced, and a row that committed is not
    running any more.
    """
    database.slow_commits(seconds=4)
    late = ledger.enqueue(4, misbehaving.sleeps_hard, kwargs={"where": where})
    ledger.enqueue(300)
    with Worker(concurrency=4):
        ledger.check(within=2 * LOST_CHILD, otherwise=dict.fromkeys(late, "failed"))
    errors = Job.objects.filter(state="failed").values_list("error__type", "crashes")
    assert set(errors) == {("TimeLimitExceeded", 0)}


@pytest.mark.parametrize("where", ["python", "query", "commit", again("autocommit")])
@guard("jobs.store.databases:cancel_query", case="query")
def test_soft_time_limit(ledger, database, where):
    """An exception in mid-body, in mid-query, or in a query without a transaction; the connection serves the next job,
    and the locks are free for all the others. Inside the COMMIT it is too late: the work is done.

    Guard: what the server still does is cancelled; the limit strikes in the body only; behind that, the row is
    believed, and a completion is fenced.
    """
    database.slow_commits(seconds=4)
    late = ledger.enqueue(
        4, misbehaving.sleeps_softly if where != "autocommit" else misbehaving.sleeps_bare, kwargs={"where": where}
    )
    ledger.enqueue(300, tasks.takes_turns)
    with Worker(concurrency=2):
        ledger.check(within=2 * LOST_CHILD, otherwise={} if where == "commit" else dict.fromkeys(late, "failed"))
    ended = Job.objects.filter(task__contains="sleeps_").values_list("state", "error__type", "lease")
    assert set(ended) == {("succeeded", None, 1) if where == "commit" else ("failed", "SoftTimeLimitExceeded", 1)}


@shared_task(soft_time_limit=1, time_limit=20)
def handles_its_limit(key, how):
    _handle_limit(key, how)


@shared_task(soft_time_limit=1, time_limit=20, atomic=False)
def handles_its_limit_bare(key):
    _handle_limit(key, "returns")


@shared_task
def fails_in_a_stream(key):
    """The traceback keeps the query open, which has psycopg's lock."""
    with connection.cursor() as cursor:
        rows = cursor.stream("SELECT generate_series(1, 1000)")
        raise ValueError(next(rows))


def _handle_limit(key, how):
    Effect.objects.create(key=key, pid=os.getpid())
    try:
        if how == "conflict":
            time.sleep(60)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
    except SoftTimeLimitExceeded:
        if how == "queries":
            Effect.objects.filter(key=key).update(note="too late")
        if how == "conflict":
            misbehaving.conflict()


@pytest.mark.parametrize("how", ["queries", "returns", "conflict"])
@guard(Without("jobs.store.databases:is_lost", "False", call="is_interrupted"), case="queries")
@guard(Without("jobs.execution.pipeline:look_after", "False", call="databases.is_interrupted"), case="returns")
@guard(Without("jobs.execution.pipeline:look_after", "True", call="databases.is_idle"), case="returns")
@guard(Without("jobs.store.databases:roll_back", "False", call="is_interrupted"), case="returns")
@guard(Without("jobs.execution.pipeline:_what_struck", "exc"), case="conflict")
def test_soft_time_limit_that_the_body_handles(ledger, how):
    """In mid-query: it goes on over a connection that takes no other query. That is its own failure, and one time is
    enough; a body without a transaction that just returns has done its work. One that fails in the middle of a query
    just fails.

    Guard: the link is not to blame, and what a body leaves behind is looked at.
    """
    late = ledger.enqueue(4, handles_its_limit, kwargs={"how": how})
    ledger.enqueue(2, handles_its_limit_bare)
    broken = ledger.enqueue(2, fails_in_a_stream)
    ledger.enqueue(300)
    with Worker(concurrency=4):
        ledger.check(within=2 * LOST_CHILD, otherwise=dict.fromkeys(late + broken, "failed"))
    assert set(Job.objects.exclude(task="tests.tasks.effect").values_list("lease", flat=True)) == {1}
    assert set(Job.objects.values_list("retries", "node_losses", "crashes")) == {(0, 0, 0)}
    message = {"queries": "another command is already in progress", "returns": "the body returned although"}
    for error in Job.objects.filter(state="failed", task__contains="limit").values_list("error", flat=True):
        assert message.get(how, "40001") in error["message"] + error["traceback"]


@guard(Without("jobs.worker.watchdog:_supervise", "True", clause="_ended(child) == 0"))
def test_supervisor_killed_under_load(ledger):
    """Who watches the watcher: its watchdog.

    Guard: the watchdog starts it again.
    """
    with Worker() as worker:
        with ledger.load(300):
            ledger.wait_effects(30)
            worker.supervisor.kill()
            worker.said("died and is started again")
            ledger.enqueue(20, countdown=1)
        ledger.check(within=LOST_CHILD)


def test_idle_processes_killed(ledger):
    """None of them had anything to do with a job.

    Guard: Celery starts others, which look before they wait for a ring.
    """
    with Worker(concurrency=3) as worker:
        for child in wait_for(lambda: worker.children, 10, "the worker has children"):
            child.kill()
        ledger.enqueue(300)
        ledger.check(within=LOST_CHILD)
