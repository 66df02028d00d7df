"""A person kills a running job: it ends, its process ends, and nothing of it comes back. And workers are told."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from contextlib import suppress

import pytest
from celery import shared_task
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.models.functions import Now
from django.urls import reverse

from jobs.contrib.operator import kill, orders, store
from jobs.contrib.sessions.store import RUNS
from jobs.contrib.why import explain as why
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import is_alive
from jobs.models import Action, Job, Node
from jobs.store import databases
from tests import tasks
from tests.helpers.gates import once_only, wait_for_file
from tests.helpers.harness import Worker, claim, effects, in_body, wait_ended, wait_reached, wait_state
from tests.helpers.rows import make, make_node
from tests.helpers.servers import wait_for
from tests.models import Order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def body(tmp_path):
    """The arguments of a body that waits, and its files."""
    return str(tmp_path / "started"), str(tmp_path / "gate")


def begun(result, tmp_path) -> int:
    return in_body(result.id, tmp_path / "started")


def killed(key: object) -> Job:
    """It is over, once and for all."""
    job = Job.objects.get(pk=str(key))
    assert (job.state, job.error["type"]) == ("cancelled", "Killed")
    return job


def obeyed(worker: Worker) -> None:
    """Wait until the worker has read all that it was told so far."""
    store.give(worker.node.pk, orders.QUIET, "quiet")
    wait_for(lambda: Node.objects.get(pk=worker.node.pk).queues == [], 10, "the worker is quiet")


def tell(worker: Worker, verb: str) -> None:
    call_command("jobs", "tell", verb, str(worker.node.pk)[:8], "--why", "a test", "--json")


@pytest.mark.core
@pytest.mark.parametrize("task", [tasks.gated, tasks.waits], ids=["atomic", "not atomic"])
def test_a_killed_job_ends_with_its_process_and_does_not_come_back(task, tmp_path, body):
    """On SQLite the atomic body holds the write lock, which the end of its job needs."""
    with Worker(concurrency=1) as worker:
        result = task.delay("a", *body)
        pid = begun(result, tmp_path)
        call_command("jobs", "kill", result.id, "--why", "it hangs")
        job = killed(result.id)
        assert job.error["message"].endswith("(it hangs)")
        wait_for(lambda: not is_alive(pid), 10, f"the process is dead: {worker.text()[-3000:]}")
        after = tasks.effect.delay("after")
        wait_ended(after.id)
        assert effects() == {"after": 1}
        assert worker.process.poll() is None
    job = killed(result.id)
    assert (job.lease, job.crashes, job.node_losses, job.retries) == (1, 0, 0, 0)
    [action] = Action.objects.filter(job=job.pk)
    assert (action.what, action.why) == ("kill", "it hangs")


@pytest.mark.slow
def test_a_process_that_has_gone_on_to_another_job_is_not_killed(tmp_path, body):
    with Worker(concurrency=1) as worker:
        first = tasks.effect.delay("first")
        wait_ended(first.id)
        second = tasks.waits.delay("second", *body)
        pid = begun(second, tmp_path)
        # What ran here before, and a run of this very job that was, or is to come.
        store.give(worker.node.pk, orders.KILL, "late", uuid.UUID(first.id), 1)
        store.give(worker.node.pk, orders.KILL, "of another run", uuid.UUID(second.id), 2)
        obeyed(worker)
        assert is_alive(pid)
        (tmp_path / "gate").touch()
        wait_ended(second.id)
    assert effects() == {"first": 1, "second": 1}


@pytest.mark.slow
def test_a_job_that_was_killed_before_its_body_began_does_nothing():
    """Race: its process has claimed it, and is about to begin."""
    with Worker(concurrency=1, sync="after_claim=pause") as worker:
        result = tasks.effect.delay("a")
        pid = wait_reached(worker.directory, "after_claim")
        call_command("jobs", "kill", result.id)
        wait_for(lambda: not is_alive(pid), 10, "the process is dead")
        wait_ended(tasks.effect.delay("after").id)
    killed(result.id)
    assert effects() == {"after": 1}


@pytest.mark.slow
def test_the_worker_ends_the_job_if_whoever_killed_it_is_gone(tmp_path, body):
    with Worker(concurrency=1) as worker:
        result = tasks.gated.delay("a", *body)
        begun(result, tmp_path)
        store.give(worker.node.pk, orders.KILL, "killed by somebody", uuid.UUID(result.id), 1)
        wait_state(result.id, "cancelled")
    assert (killed(result.id).error["message"], effects()) == ("killed by somebody", {})


def test_a_job_that_begins_at_this_moment_is_killed(monkeypatch):
    """Race: its run gives the row a token of its own, between the look and the statement."""
    job, end = make("running"), kill._end

    def late(found, *args):
        Job.objects.filter(pk=job.pk, token=job.token).update(token=job.token + 1)
        return end(found, *args)

    monkeypatch.setattr(kill, "_end", late)
    call_command("jobs", "kill", str(job.pk))
    killed(job.pk)


def test_a_later_order_for_the_same_job_is_not_deleted_with_an_earlier_one():
    """Race: a job that was killed here was retried, runs elsewhere, and is killed again before the first is over."""
    key, here, there = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    with databases.side() as side:
        store.give(here, orders.KILL, "first", key, 1)
        [first] = store.read(side, here)
        store.give(there, orders.KILL, "second", key, 2)
        store.delete(side, first)
        [second] = store.read(side, there)
        assert second.text == "second"
        store.delete(side, second)
        assert store.read(side, there) == []


def test_what_waits_or_has_ended_is_not_killed(capsys):
    for state in ("ready", "scheduled", "succeeded", "failed"):
        job = make(state)
        with pytest.raises(CommandError, match="1 of 1 could not be killed"):
            call_command("jobs", "kill", str(job.pk))
        assert "it does not run" in capsys.readouterr().out
        assert Job.objects.get(pk=job.pk).state == state


@pytest.mark.database
def test_a_run_that_is_about_to_commit_wins_or_loses(tmp_path):
    """It holds the row's lock. The kill waits for it; and ends its transaction if it does not come to its end."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one lock for all")
    with Worker(concurrency=1, sync="after_completion=pause") as worker:
        won = tasks.effect.delay("won")
        wait_reached(worker.directory, "after_completion")
        go = threading.Timer(0.5, (worker.directory / "after_completion.go").touch)
        go.start()
        with pytest.raises(CommandError):
            call_command("jobs", "kill", won.id)
        go.join()
        assert Job.objects.get(pk=won.id).state == "succeeded"
    with Worker(concurrency=1, sync="after_completion=stop") as worker:
        lost = tasks.effect.delay("lost")
        wait_reached(worker.directory, "after_completion")
        began = time.monotonic()
        call_command("jobs", "kill", lost.id)
        assert time.monotonic() - began < 20, "it does not wait for what will never come"
        killed(lost.id)
    assert effects() == {"won": 1}


@shared_task
def locks_and_waits(key, started, gate):
    Order.objects.select_for_update().get(key=key)
    once_only(started)
    wait_for_file(gate)


@pytest.mark.database
def test_the_transaction_is_ended_although_its_worker_hangs(tmp_path, body):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite's lock ends with the process")
    row = Order.objects.create(key="row", job=uuid.uuid4())
    with Worker(concurrency=1) as worker:
        result = locks_and_waits.delay("row", *body)
        begun(result, tmp_path)
        worker.signal(signal.SIGSTOP)
        call_command("jobs", "kill", result.id)
        killed(result.id)

        def is_free() -> bool:
            try:
                with transaction.atomic():
                    return bool(Order.objects.select_for_update(nowait=True).get(pk=row.pk))
            except DatabaseError:
                return False

        wait_for(is_free, 5, "the lock is free")


@pytest.mark.database
def test_the_transaction_of_the_next_job_of_the_same_claim_is_not_ended(monkeypatch):
    """The connection of a run that was killed may serve another one by now, of the same moment."""
    if connection.vendor != "postgresql":
        pytest.skip("needs server processes")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        own = cursor.fetchone()[0]
    node = make_node()
    first, second = (make("running", node=node, backend=own) for _ in range(2))
    Job.objects.update(started_at=first.started_at)
    Job.objects.filter(pk=first.pk).update(state="cancelled", finished_at=first.started_at)
    with databases.apart("default") as other, other.cursor() as cursor, transaction.atomic():
        assert Job.objects.filter(state="running").count() == 1
        cursor.execute(RUNS, ([first.pk], [first.pk], [1]))
        assert cursor.fetchall() == []
        cursor.execute(RUNS, ([second.pk], [second.pk], [1]))
        assert [key for key, *_ in cursor.fetchall()] == [second.pk]


@pytest.mark.database
def test_the_connection_of_a_job_whose_row_somebody_else_holds_is_not_ended(monkeypatch, capsys):
    """It may run another job of the same claim, and would lose that one's work."""
    if connection.vendor != "postgresql":
        pytest.skip("needs server processes")
    monkeypatch.setattr(kill, "PATIENCE", 0.2)
    with (
        databases.apart("default") as runs,
        databases.apart("default") as holds,
        runs.cursor() as run,
        holds.cursor() as hold,
    ):
        run.execute("SELECT pg_backend_pid()")
        [pid] = run.fetchone()
        job = make("running", backend=pid)
        Job.objects.update(started_at=Now())
        for statement in ("BEGIN", "SELECT 1"):
            run.execute(statement)
        hold.execute("BEGIN")
        hold.execute("SELECT 1 FROM jobs_job WHERE id = %s FOR UPDATE", [job.pk])
        with pytest.raises(CommandError):
            call_command("jobs", "kill", str(job.pk))
        assert "its row is locked" in capsys.readouterr().out
        run.execute("COMMIT")
        hold.execute("ROLLBACK")
        # Its own completion, which does not come to its commit.
        run.execute("BEGIN")
        run.execute("UPDATE jobs_job SET priority = 1 WHERE id = %s", [job.pk])
        call_command("jobs", "kill", str(job.pk))
        killed(job.pk)
        with pytest.raises(OperationalError):
            run.execute("COMMIT")


def test_a_run_that_saved_its_cursor_at_a_savepoint_is_killed(node):
    """The row is locked by a part of its transaction, of which the server's lists of locks say nothing."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    job, answers = claim(tasks.part.delay("x").id), []

    def killer() -> None:
        try:
            answers.append(kill.kill(job.pk, "default", "it hangs"))
        except Exception as exc:
            answers.append(exc)
        finally:
            connections.close_all()

    thread = threading.Thread(target=killer)
    with suppress(DatabaseError), transaction.atomic():
        Job.objects.exists()
        with transaction.atomic():
            job.save_cursor(1)
        thread.start()
        thread.join(30)
    connection.close()
    assert answers == [True]


def test_the_job_of_a_thread_ends_and_its_body_is_rolled_back_when_it_ends(tmp_path, body):
    if connection.vendor == "sqlite":
        pytest.skip("the body of a thread holds SQLite's only write lock until it ends")
    with Worker("-P", "threads", concurrency=2) as worker:
        result = tasks.gated.delay("a", *body, queries=1)
        pid = begun(result, tmp_path)
        call_command("jobs", "kill", result.id)
        killed(result.id)
        obeyed(worker)
        assert is_alive(pid)
        tell(worker, "resume")
        (tmp_path / "gate").touch()
        wait_ended(tasks.effect.delay("after").id)
        wait_for(lambda: "lost_lease" in worker.text() or "another run" in worker.text(), 10, "the body ended")
    killed(result.id)
    assert effects() == {"after": 1}


def test_why_says_what_ends_a_body_that_hangs():
    job = make("running")
    transitions.ask_to_end(job.pk, "default")
    _, reasons = why.explain(job.pk)
    asked = next(each for each in reasons if each.code == "ending")
    assert asked.cure.endswith(f"manage.py jobs kill {job.pk}")


# Workers


@pytest.mark.slow
@pytest.mark.core
def test_a_quiet_worker_finishes_what_it_runs_and_claims_nothing_more(tmp_path, body):
    with Worker(concurrency=2) as worker:
        first = tasks.waits.delay("first", *body)
        begun(first, tmp_path)
        tell(worker, "quiet")
        wait_for(lambda: Node.objects.get(pk=worker.node.pk).queues == [], 10, "the worker is quiet")
        second = tasks.effect.delay("second")
        (tmp_path / "gate").touch()
        wait_ended(first.id)
        assert Job.objects.get(pk=second.id).state == "ready"
        tell(worker, "resume")
        wait_ended(second.id)
        assert Node.objects.get(pk=worker.node.pk).queues != []
    assert effects() == {"first": 1, "second": 1}


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_finishes_what_it_runs_and_ends(tmp_path, body):
    with Worker(concurrency=1) as worker:
        result = tasks.waits.delay("a", *body)
        begun(result, tmp_path)
        tell(worker, "stop")
        wait_for(lambda: Node.objects.get(pk=worker.node.pk).stopping_at, 15, "the worker stops")
        (tmp_path / "gate").touch()
        assert worker.process.wait(20) == 0
    assert wait_state(result.id, "succeeded").lease == 1


def test_nobody_kills_a_job_without_the_permission(staff):
    client, job = staff("view_job", "cancel_job"), make("running")
    assert b'value="kill"' not in client.get(reverse("admin:jobs_job_change", args=[job.pk])).content
    url = reverse("admin:jobs_job_operate_one", args=[job.pk])
    assert client.post(url, {"operation": "kill"}).status_code == 403
    assert Job.objects.get().state == "running"
