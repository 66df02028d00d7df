"""Signals tell what was committed, to whom it may concern, and decide nothing."""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
from celery import current_app
from django.db import IntegrityError, connection, transaction
from django.dispatch import receiver
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import signals
from jobs.lifecycle import transitions, wakeups
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import clock, rescue
from jobs.models import Job, Node
from tests import tasks
from tests.helpers.concurrency import autocommit_off
from tests.helpers.harness import Worker, claim, deliver, die_with, effects, run, wait_ended
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ALL = ("enqueued", "started", "succeeded", "retried", "failed", "cancelled", "rescued")


@pytest.fixture(autouse=True)
def _node(node):
    pass


@pytest.fixture
def told():
    """Every signal that was sent: (name, what the receiver got)."""
    seen: list[tuple[str, dict[str, Any]]] = []
    receivers = {}
    for name in ALL:

        def hear(signal, name=name, **kwargs):
            seen.append((name, kwargs))

        receivers[name] = hear
        getattr(signals, name).connect(hear)
    yield seen
    for name, hear in receivers.items():
        assert getattr(signals, name).disconnect(hear)


def names(told) -> list[str]:
    return [name for name, _ in told]


@pytest.fixture
def broken():
    """A receiver of every signal that raises."""
    connected = []
    for name in ALL:

        def fail(**kwargs):
            raise RuntimeError("a receiver of the project")

        connected.append((getattr(signals, name), fail))
        getattr(signals, name).connect(fail)
    yield
    for signal, fail in connected:
        assert signal.disconnect(fail)


def test_enqueued_is_sent_after_the_commit_and_not_without_one(told):
    with transaction.atomic():
        first = tasks.effect.delay("a")
        tasks.effect.apply_async(["b"], countdown=60)
        assert told == []
    assert names(told) == ["enqueued"] * 2
    what = told[0][1]
    assert (what["sender"], what["using"], str(what["job"].pk)) == (tasks.effect.name, "default", first.id)
    assert what["job"].created_at <= timezone.now(), "what the database computed can be read"
    told.clear()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.effect.delay("c")
        with transaction.atomic():
            tasks.effect.delay("d")
        raise ZeroDivisionError
    assert told == []

    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            tasks.effect.delay("rolled back")
            raise ZeroDivisionError
        tasks.effect.delay_many([("e",), ("f",)])
    assert [what["job"].args for _, what in told] == [["e"], ["f"]]
    told.clear()

    tasks.effect.delay("autocommit")
    assert names(told) == ["enqueued"]


def test_a_transaction_still_rings_once_with_receivers_connected(told, monkeypatch):
    rings: list[set[str]] = []
    monkeypatch.setattr(wakeups, "notify", lambda using, queues: rings.append(set(queues)))
    with transaction.atomic():
        tasks.effect.delay("a")
        tasks.effect.apply_async(("b",), queue="mail")
    assert rings == [{current_app.conf.task_default_queue, "mail"}]
    assert names(told) == ["enqueued"] * 2


def test_with_autocommit_off_nothing_tells_of_the_commit(told):
    with autocommit_off():
        tasks.effect.delay("a")
        connection.commit()
    assert Job.objects.count() == 1
    assert told == []


def test_a_run_that_succeeds(told):
    result = tasks.effect.delay("a")
    told.clear()

    committed: list[bool] = []

    def look(job, **kwargs):
        committed.append(not connection.in_atomic_block and Job.objects.get(pk=job.pk).state == "succeeded")

    signals.succeeded.connect(look)
    try:
        deliver(result)
    finally:
        signals.succeeded.disconnect(look)
    assert names(told) == ["started", "succeeded"]
    assert committed == [True], "after the commit"
    job = told[1][1]["job"]
    assert (job.state, job.result, job.lease) == ("succeeded", "a", 1)
    assert job.started_at <= job.finished_at


def test_a_body_that_raises(told):
    result = tasks.raises.delay("no")
    told.clear()
    deliver(result)
    assert names(told) == ["started", "failed"]
    what = told[1][1]
    assert (what["error"]["type"], what["error"]["message"]) == ("ValueError", "no")
    assert what["error"] == Job.objects.get().error
    assert what["job"].state == "failed"


def test_a_retry(told):
    result = tasks.retries.delay("a", 1)
    told.clear()
    deliver(result)
    assert names(told) == ["started", "retried"]
    what = told[1][1]
    assert (what["job"].state, what["job"].retries) == ("scheduled", 1)
    assert what["error"]["attempt"] == 1


def test_a_retry_that_was_asked_to_end_is_cancelled(told, caplog):
    result = tasks.retries.delay("a", 1)
    told.clear()
    signals.started.connect(ask := lambda job, using, **kwargs: transitions.ask_to_end(job.pk, using))
    try:
        with caplog.at_level(logging.INFO, "jobs"):
            deliver(result)
    finally:
        signals.started.disconnect(ask)
    assert names(told) == ["started", "cancelled"]
    assert told[1][1]["error"]["message"] == "cancelled by hand"
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["cancelled"]


@pytest.mark.parametrize(
    ("outcome", "signal", "state"), [("ignore", "cancelled", "cancelled"), ("requeue", "rescued", "scheduled")]
)
def test_a_body_that_steps_out(told, outcome, signal, state):
    result = tasks.steps_out.delay("a", outcome)
    told.clear()
    deliver(result)
    assert names(told) == ["started", signal]
    assert told[1][1]["job"].state == state
    if signal == "rescued":
        assert (told[1][1]["action"], told[1][1]["error"]) == ("handed_back", None)


def test_a_zombie_tells_no_more_than_that_it_began(told):
    job = claim(tasks.effect.delay("a").id)
    told.clear()
    Job.objects.update(token=9)
    assert run(job)[0] == "IGNORED"
    assert names(told) == ["started"]


def test_a_dead_workers_job_is_rescued_and_fails_at_its_limit(told, node, settings):
    result = tasks.effect.delay("a")
    told.clear()
    for _ in range(2):
        assert claim(result.id, node.pk)
        transitions.write_death(node.pk, "default")
        settings.JOBS = {**settings.JOBS, "MAX_NODE_LOSSES": 2}
        rescue.rescue_all("default")
        node = Node.objects.create(hostname="next", pid=2)
    assert names(told) == ["rescued", "failed"]
    assert told[0][1]["action"] == "rescued"
    assert told[0][1]["job"].state == "ready"
    assert told[0][1]["error"]["type"] == told[1][1]["error"]["type"] == "NodeLost"
    assert Job.objects.get().state == "failed"


def test_processes_that_died_were_too_slow_or_were_dropped(told, node):
    own = rescue.OwnJobs(os.getpid())
    crashed, slow, dropped = (tasks.effect.delay(key) for key in "abc")
    told.clear()
    slots = [die_with(worker_state, claim(result.id)) for result in (crashed, slow)]
    own.expect_end(slots[1], "TimeLimitExceeded", "TimeLimitExceeded(2)")
    assert own.finish_dead() == 2
    die_with(worker_state, claim(dropped.id))
    worker_state.note_stop()
    assert own.finish_dead() == 1
    # A dead process takes any slot of the worker state, and they are finished in the worker state's order.
    said = {(name, what.get("action"), what["error"] and what["error"]["type"]) for name, what in told}
    assert len(told) == 3
    assert said == {
        ("rescued", "crashed", "WorkerLostError"),
        ("failed", None, "TimeLimitExceeded"),
        ("rescued", "handed_back", None),
    }


def test_jobs_that_wait_are_cancelled_or_expire(told):
    cancelled, expired = tasks.effect.delay("a"), tasks.effect.apply_async(["b"], expires=3600)
    Job.objects.filter(pk=expired.id).update(expires_at=timezone.now())
    told.clear()
    with transaction.atomic():
        assert transitions.cancel(uuid.UUID(cancelled.id), "default")
        assert told == []
    assert not transitions.cancel(uuid.UUID(cancelled.id), "default")
    assert clock.tick()["expired"] == 1
    assert [(name, str(what["job"].pk), what["error"]["type"]) for name, what in told if name == "cancelled"] == [
        ("cancelled", cancelled.id, "Cancelled"),
        ("cancelled", expired.id, "Expired"),
    ]


def test_a_receiver_that_raises_changes_no_jobs_fate(broken, caplog, node):
    results = {
        "succeeded": tasks.effect.delay("a"),
        "failed": tasks.raises.delay("no"),
        "scheduled": tasks.retries.delay("b", 1),
        "cancelled": tasks.steps_out.delay("c", "ignore"),
    }
    with transaction.atomic():
        tasks.effect.delay("in a transaction")
    states = {state: deliver(result)[0] for state, result in results.items()}
    assert states == {"succeeded": "SUCCESS", "failed": "FAILURE", "scheduled": "RETRY", "cancelled": "IGNORED"}
    assert {state: Job.objects.get(pk=result.id).state for state, result in results.items()} == {s: s for s in results}
    assert effects() == {"a": 1}
    job = Job.objects.get(state="ready")
    assert claim(job.pk, node.pk)
    transitions.write_death(node.pk, "default")
    assert rescue.rescue_all("default") == 1
    assert Job.objects.get(pk=job.pk).state == "ready"

    lines = [record for record in caplog.records if getattr(record, "action", "") == "receiver_failed"]
    assert {record.signal for record in lines} == set(ALL)
    assert all("a receiver of the project" in record.getMessage() for record in lines)
    assert {record.job for record in lines} == {str(job.pk) for job in Job.objects.all()}


@pytest.mark.core
def test_a_receiver_with_a_failed_query_leaves_the_body_a_sound_connection():
    other = Node.objects.create(hostname="x", pid=1)

    def collide(**kwargs):
        with transaction.atomic():
            Node.objects.create(pk=other.pk, hostname="x", pid=1)

    def collide_in_autocommit(**kwargs):
        Node.objects.create(pk=other.pk, hostname="x", pid=1)

    with pytest.raises(IntegrityError):
        collide()
    for receiver_ in (collide, collide_in_autocommit):
        for name in ALL:
            getattr(signals, name).connect(receiver_)
        try:
            with transaction.atomic():
                result = tasks.effect.delay(receiver_.__name__)
            assert deliver(result)[0] == "SUCCESS"
        finally:
            for name in ALL:
                getattr(signals, name).disconnect(receiver_)
    assert effects() == {"collide": 1, "collide_in_autocommit": 1}


def test_a_receiver_is_told_of_a_failure_while_its_exception_is_handled():
    """The log of Django's tasks, and what reports errors, ask ``sys.exc_info()``."""
    handled = []

    def ask(**kwargs):
        handled.append(sys.exc_info()[1])

    signals.failed.connect(ask)
    try:
        state, error = deliver(tasks.raises.delay("plain"))
    finally:
        signals.failed.disconnect(ask)
    assert (state, handled) == ("FAILURE", [error])


def test_a_receiver_that_is_no_function_can_raise_as_well(caplog):
    """Django's own report of it asks for a name that it has not."""

    def fail(reason, **kwargs):
        raise RuntimeError(reason)

    partial_ = partial(fail, "no name")
    signals.started.connect(partial_)
    try:
        result = tasks.effect.delay("a")
        assert deliver(result)[0] == "SUCCESS"
    finally:
        signals.started.disconnect(partial_)
    assert "receiver_failed" in {getattr(record, "action", "") for record in caplog.records}


def test_the_sender_is_a_task_or_its_name():
    heard = defaultdict(list)

    @receiver(signals.started, sender=tasks.effect)
    def by_task(sender, job, **kwargs):
        heard["task"].append(sender)

    # Another object of the same text.
    @receiver([signals.started, signals.succeeded], sender="".join(["tests.tasks", ".effect"]))
    def by_name(sender, **kwargs):
        heard["name"].append(sender)

    try:
        deliver(tasks.effect.delay("a"))
        deliver(tasks.noop.delay())
    finally:
        assert signals.started.disconnect(by_task, sender=tasks.effect)
        assert signals.started.disconnect(by_name, sender=tasks.effect.name)
        assert signals.succeeded.disconnect(by_name, sender=tasks.effect)
    assert heard == {"task": [tasks.effect.name], "name": [tasks.effect.name] * 2}


def test_no_statement_more_for_signals(request):
    deliver(tasks.effect.delay("warm"))
    counts = []
    for told in (None, "told"):
        heard = request.getfixturevalue(told) if told else []
        with CaptureQueriesContext(connection) as queries:
            deliver(tasks.effect.delay("a"))
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert names(heard) == ["enqueued", "started", "succeeded"]


def test_only_new_jobs_are_announced(node):
    seen = []
    receiver = lambda job, **kwargs: seen.append(str(job.pk))  # noqa: E731
    signals.enqueued.connect(receiver)
    try:
        one = tasks.summary.delay("mon")
        tasks.summary.delay("mon")
    finally:
        signals.enqueued.disconnect(receiver)
    assert seen == [one.id]


def test_signals_of_real_processes(tmp_path):
    """The pool's processes tell of runs, the supervisor of what it finishes."""
    log = tmp_path / "signals"

    def heard(job: str) -> list[str]:
        lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
        return [line["signal"] for line in lines if line["job"] == job]

    with Worker(concurrency=1, JOBS_TEST_SIGNALS=str(log)):
        done, killer = tasks.effect.delay("a"), tasks.kills_once.delay("b", str(tmp_path / "marker"))
        wait_ended(done.id, killer.id)
        wait_for(lambda: heard(killer.id)[-1:] == ["succeeded"], 10, "told")
        assert heard(done.id) == ["started", "succeeded"]
        assert heard(killer.id) == ["started", "rescued", "started", "succeeded"]
