"""``manage.py jobs why``: broken situations and the right reason first, and what else a job may be asked."""

from __future__ import annotations

import datetime
import io
import time
import uuid

import pytest
from celery import current_app
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from jobs.conf import syncpoints
from jobs.contrib.pauses import pauses
from jobs.contrib.why import waiting
from jobs.lifecycle import transitions
from jobs.lifecycle.transitions import PARKED
from jobs.models import Cancellation, Instance, Job, Node, Schedule
from tests import tasks
from tests.contrib.locks import tasks as own_tasks
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.harness import Worker, deliver, in_body, wait_ended, wait_state
from tests.helpers.rows import ERROR, let_heartbeat, make, make_node
from tests.helpers.servers import wait_for
from tests.helpers.why import ask, codes, first
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


# Broken situations


def test_queue_that_no_worker_consumes():
    with Worker() as worker:
        job = tasks.effect.apply_async(("a",), queue="mail")
        reason = first(job.id)
    assert reason["code"] == "no_consumer"
    assert "mail" in reason["says"]
    assert "-Q mail" in reason["cure"]
    assert reason["evidence"]["workers"] == {str(worker.node): ["celery"]}


def test_a_worker_that_was_told_to_be_quiet():
    node = let_heartbeat(make_node(queues=[]))
    reason = first(make("ready").pk)
    assert reason["code"] == "no_consumer"
    assert "was told to be quiet" in reason["says"]
    assert reason["cure"] == f"manage.py jobs tell resume {str(node.pk)[:8]}"


def test_paused_queue():
    pauses.pause("celery", by="ada", reason="the mail server is moved")
    with Worker():
        job = tasks.effect.delay("a")
        reason = first(job.id)
        assert reason["code"] == "queue_paused"
        assert "ada" in reason["says"]
        assert "the mail server is moved" in reason["says"]
        assert reason["cure"] == "manage.py jobs resume celery"


@pytest.mark.slow
def test_dead_node(tmp_path):
    with Worker() as worker:
        job = tasks.slow.delay("a", seconds=30)
        wait_state(job.id, "running")
        worker.kill()
    # Also before anybody is sure.
    assert first(job.id)["code"] == "running"
    reason = wait_for(lambda: (first(job.id)["code"] == "node_dead") and first(job.id), 20, "it is silent")
    assert str(worker.node) in reason["says"]
    assert "start one" in reason["cure"]


def test_unique_key_that_another_job_has_taken(node):
    """While it ran the key was free; its retry finds it taken, and so would a replay."""
    job = tasks.summary.delay("monday", how="retries")
    others = []
    syncpoints.arm(lambda point: others.append(tasks.summary.delay("monday")) if point == "after_claim" else None)
    deliver(job)
    syncpoints.arm(None)
    reason = first(job.id)
    assert reason["code"] == "unique_taken"
    assert "'monday'" in reason["says"]
    assert others[0].id in reason["says"]
    assert codes(job.id)[1:] == ["failed"]


@pytest.mark.slow
def test_lock_that_another_job_holds(tmp_path, store):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(**store):
        holder = own_tasks.gated_alone.delay("a", "holder", str(started), str(gate))
        in_body(holder.id, started)
        waiting = own_tasks.gated_alone.delay("a", "waiting", str(started), str(gate))
        wait_for(lambda: Job.objects.get(pk=waiting.id).waits_for, 20, "it found the lock held")
        reason = wait_for(
            lambda: (first(waiting.id)["code"] == "lock_held") and first(waiting.id), 20, "and says so while it waits"
        )
        assert holder.id in reason["says"]
        assert reason["evidence"]["lock"] == "gated:a"
        assert reason["cure"] == f"manage.py jobs why {holder.id}"
        gate.touch()
        wait_ended(waiting.id)


def test_an_open_body_on_sqlite_keeps_idle_processes_from_claiming(tmp_path):
    if connection.vendor != "sqlite":
        pytest.skip("others lock rows")
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker():
        with transaction.atomic():
            holder = tasks.gated.delay("holder", str(started), str(gate))
            waiting = tasks.effect.apply_async(("waiting",), countdown=0.5)
        in_body(holder.id, started)
        # Not the page: to log in is to write.
        wait_for(lambda: ask(waiting.id)["reasons"][0]["code"] == "write_lock", 20, "it says so")
        reason = ask(waiting.id)["reasons"][0]
        assert reason["says"].startswith(f"The job {holder.id} (tests.tasks.gated) has been running for ")
        assert "atomic=False" in reason["cure"]
        gate.touch()
        wait_ended(waiting.id)
        assert codes(waiting.id) == ["succeeded"]


def test_a_body_without_a_transaction_keeps_nobody_from_claiming(worker):
    make("running", node=worker, age=30, task="shop.tasks.charge_order")
    make("running", age=30)  # of a worker that is gone, and its transaction with it
    assert codes(make("ready").pk) == ["next"]


def test_task_that_no_worker_knows():
    """The code that enqueues was deployed first."""
    name = "tests.tasks.of_tomorrow"

    def of_tomorrow():
        pass

    task = current_app.task(of_tomorrow, name=name)
    try:
        with Worker():
            job = task.delay()
            assert first(job.id)["code"] == "unknown_task"
            wait_for(lambda: Job.objects.get(pk=job.id).error, 20, "a worker has seen it")
            reason = first(job.id)
    finally:
        current_app.tasks.pop(name)
    assert reason["code"] == "unknown_task"
    assert name in reason["says"]
    assert reason["evidence"]["known_here"] is True


def test_arguments_of_an_older_signature():
    job = tasks.add.delay(1, 2)
    Job.objects.filter(pk=job.id).update(args=[1, 2, 3])
    assert "old_signature" in codes(job.id)
    with Worker():
        wait_ended(job.id)
    reason = first(job.id)
    assert reason["code"] == "old_signature"
    assert "(x, y)" in reason["says"]
    assert "retry" in reason["cure"]


@pytest.mark.slow
def test_expired_job():
    job = tasks.effect.apply_async(("a",), expires=0.1)
    wait_for(lambda: first(job.id)["code"] == "expired", 10, "it is over")
    assert Job.objects.get().state == "ready"
    with Worker():
        wait_ended(job.id)
    assert first(job.id)["code"] == "expired"
    assert Job.objects.get().state == "cancelled"


# What else it may be asked


def test_unknown_id():
    key = uuid.uuid4()
    assert codes(key) == ["unknown"]
    with pytest.raises(CommandError, match=f"no job {key}"):
        call_command("jobs", "why", str(key), stdout=io.StringIO())
    with pytest.raises(CommandError, match="'7' is no valid UUID"):
        call_command("jobs", "why", "7")


def test_a_job_is_named_by_the_digits_that_lists_show():
    job = make("failed")
    assert ask(str(job.pk)[-8:].upper())["id"] == str(job.pk)


def test_without_any_worker():
    assert codes(make("ready").pk) == ["no_worker"]
    make_node()
    reason = first(make("ready").pk)
    assert reason["code"] == "no_worker"
    assert "web1" in reason["says"]


def test_its_own_time():
    soon = timezone.now() + datetime.timedelta(hours=3)
    entry = {**ERROR, "attempt": 4}

    def why(**values):
        return codes(make("scheduled", run_at=soon, lease=4, **values).pk)[0]

    assert why() == "scheduled"
    # Of an earlier run, and not why it waits now.
    assert why(error=ERROR) == "scheduled"
    assert why(error=entry, retries=2) == "retry"
    assert why(error={**entry, "type": "Snooze"}, snoozes=1) == "snoozed"
    assert why(error={**entry, "type": "Busy"}) == "busy"
    assert why(error={**entry, "type": "WorkerLostError"}, retries=1, crashes=1) == "given_back"
    assert why(error={**entry, "type": "NotRegistered", "attempt": 0}) == "postponed"


def test_a_job_whose_task_no_worker_knows_says_so_and_no_time():
    let_heartbeat(make_node(tasks=["other"]))
    entry = {**ERROR, "type": "NotRegistered", "attempt": 0}
    job = make("scheduled", task="of.a.later.release", run_at=PARKED, waits_for="task:of.a.later.release", error=entry)
    assert codes(job.pk)[:2] == ["unknown_task", "postponed"]
    reason = next(each for each in ask(job.pk)["reasons"] if each["code"] == "postponed")
    assert "It waits for one that does" in reason["says"]
    assert "run_at" not in reason["evidence"]


def test_running(node):
    let_heartbeat(node)
    job = make("running", node=node)
    assert codes(job.pk) == ["running"]
    # A body on SQLite has the write lock: cancel could not write that it was asked for.
    verb = "kill" if connection.vendor == "sqlite" else "cancel"
    assert ask(job.pk)["reasons"][0]["cure"].startswith(f"To end it: manage.py jobs {verb} {job.pk}")
    Cancellation.objects.create(job=job.pk, reason="by hand")
    assert codes(job.pk) == ["ending", "running"]
    transitions.write_death(node.pk, "default")
    assert codes(job.pk)[:2] == ["node_dead", "ending"]
    node.delete()
    assert codes(job.pk)[0] == "node_dead"


@pytest.mark.database
def test_running_and_blocked_in_the_database(node, settings):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite does not say")
    let_heartbeat(node)
    effect = Effect.objects.create(key="a")
    result = tasks.touches.delay(effect.pk)

    def lock_it():
        Effect.objects.filter(pk=effect.pk).update(note="locked")

    with open_transaction(lock_it):
        run = Elsewhere(lambda: deliver(result))
        wait_for(somebody_waits, 10, "the body waits")
        assert codes(result.id) == ["database_lock", "running"]
    assert run.result()[0] == "SUCCESS"


@pytest.fixture
def worker(node):
    let_heartbeat(node)
    Node.objects.update(queues=["celery", "mail"], tasks=["tests.tasks.effect"], concurrency=2)
    return Node.objects.get()


def test_waiting_for_its_turn(worker, monkeypatch):
    # On a busy machine what runs here would hold the lock of SQLite for long.
    monkeypatch.setattr(waiting, "LONG", 3600.0)
    job = make("ready", rank=5)
    assert first(job.pk)["code"] == "next"
    assert codes(make("ready", age=3600, rank=-9).pk) == ["not_taken"]
    make("ready", age=200, rank=5)
    # These come later, or run on other workers.
    make("ready", age=-60, rank=5)
    make("ready", age=60, rank=6)
    make("ready", age=60, queue="mail")
    make("running")
    make("running", node=worker, queue="mail")
    reason = first(job.pk)
    assert (reason["code"], reason["evidence"]["ahead"]) == ("in_line", 2)
    assert (reason["evidence"]["running"], reason["evidence"]["processes"]) == (1, 2)
    assert "2 ready jobs of its queue come before it" in reason["says"]
    assert "2 processes; running: 1." in reason["says"]
    Job.objects.filter(state="ready", queue="celery").exclude(pk=job.pk).delete()
    make("running", node=worker)
    assert codes(job.pk) == ["busy_workers"]


def test_jobs_of_one_moment_are_taken_in_the_order_of_their_calls(worker):
    jobs = [make("ready") for _ in range(3)]
    Job.objects.update(run_at=Now())
    ahead = [ask(job.pk)["reasons"][0]["evidence"]["ahead"] for job in sorted(jobs, key=lambda job: job.pk)]
    assert ahead == [0, 1, 2]


def test_a_long_line_is_counted_up_to_a_bound(worker, monkeypatch):
    monkeypatch.setattr("jobs.contrib.why.waiting.MOST", 3)
    monkeypatch.setattr("jobs.contrib.inspection.view.MOST", 3)
    for number in range(9):
        make("ready", age=10 + number, rank=number % 3)
    reason = first(make("ready", rank=9).pk)
    assert "3+ ready jobs of its queue come before it" in reason["says"]
    assert (reason["evidence"]["ahead"], reason["evidence"]["capped"]) == (3, True)


def test_due_and_not_ready_yet(worker):
    assert codes(make("scheduled", age=1).pk) == ["due"]
    assert codes(make("scheduled", age=3600).pk) == ["overdue"]
    # What keeps it for longer comes first, and alone.
    pauses.pause("celery")
    assert codes(make("scheduled", age=3600).pk) == ["queue_paused"]
    Node.objects.update(stopping_at=timezone.now())
    assert codes(make("scheduled", age=3600).pk) == ["queue_paused", "no_worker"]


@pytest.mark.database
def test_a_row_that_an_open_transaction_holds(worker):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite does not say")
    job = make("ready", age=3600)

    def lock_it():
        Job.objects.select_for_update().get(pk=job.pk)

    with open_transaction(lock_it):
        reason = ask(job.pk)["reasons"][0]
        assert reason["code"] == "row_locked"
        assert f"pid = {reason['evidence']['pid']}" in reason["cure"]
    assert "row_locked" not in codes(job.pk)


@pytest.mark.database
def test_a_transaction_that_slows_the_claims(worker, monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite does not say")
    monkeypatch.setattr("jobs.contrib.why.waiting.OLD", 0.1)
    late, fresh = make("ready", age=3600), make("ready", rank=-1)
    with open_transaction(lambda: User.objects.count()):
        time.sleep(0.2)
        assert codes(late.pk)[1:] == ["old_transaction"]
        assert codes(fresh.pk) == ["next"]
    assert "old_transaction" not in codes(late.pk)


def test_ended():
    assert codes(make("succeeded").pk) == ["succeeded"]
    assert codes(make("succeeded", replay_of=uuid.uuid4(), marker_key="k").pk) == ["replayed"]
    assert codes(make("failed").pk) == ["failed"]
    assert codes(make("failed", error={**ERROR, "type": "WorkerLostError"}).pk) == ["failed"]
    cancelled = make("cancelled", error={**ERROR, "type": "Revoked"})
    assert codes(cancelled.pk) == ["cancelled"]
    assert "Revoked" in first(cancelled.pk)["says"]


def test_a_copied_database():
    Instance.objects.update_or_create(pk=1, defaults={"mark": "another"})
    assert codes(make("ready").pk)[0] == "not_adopted"


def test_the_page_names_the_button_in_place_of_a_command_with_a_quoted_name(admin_client):
    pauses.pause("my mails")
    job = make("ready", queue="my mails")
    assert first(job.pk)["cure"] == "manage.py jobs resume 'my mails'"
    at = dict.fromkeys(("defined_at", "last_tick", "paused_at"), Now())
    Schedule.objects.create(name="each night", task="t", timing="60", **at)
    Job.objects.update(options={"headers": {"periodic_task_name": "each night"}})
    text = admin_client.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()
    for cure in ("<strong>Resume</strong>", "The schedule is paused: <strong>Resume</strong>"):
        assert f'<p class="job-cure">{cure}</p>' in text
