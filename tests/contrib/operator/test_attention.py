"""What needs attention: each thing that may go wrong is said, once, with what somebody can do about it."""

from __future__ import annotations

import datetime

import pytest
from django.utils import timezone

from jobs.contrib.inspection import counts
from jobs.contrib.operator import problems, status, workers
from jobs.contrib.pauses import pauses
from jobs.lifecycle.transitions import PARKED
from jobs.models import Cancellation, Node
from tests.helpers.rows import let_heartbeat, make, make_node

pytestmark = pytest.mark.django_db(transaction=True)


def noted() -> list[problems.Problem]:
    return problems.of(status.gather(live=True))


def alive(**more) -> Node:
    node = make_node(**more)
    let_heartbeat(node)
    return node


def test_all_is_well():
    alive()
    assert noted() == []
    assert problems.sentence([]) == "All is well."


def test_the_sentence_counts_the_problems_and_names_them():
    alive(queues=["celery"])
    for queue in ("mail", "slow"):
        make("ready", queue=queue, age=600)
    make_node(dead_at=timezone.now())
    assert problems.sentence(noted()) == "3 problems: no worker for 2 queues · 1 worker died"


def test_a_dead_worker_is_told_of_until_somebody_has_seen_it():
    week = timezone.now() - datetime.timedelta(days=6)
    dead = make_node(hostname="bulk@web1", dead_at=week)
    make_node(dead_at=week, signed_off=True)
    alive()
    [remark] = noted()
    assert (remark.kind, remark.text) == ("dead", "a worker died: bulk@web1")
    workers.seen([dead.pk])
    assert noted() == []


def test_a_paused_queue_is_a_problem_if_jobs_wait():
    pauses.pause("mail", "ada", "moving")
    alive()
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.line) == (
        "paused", "info", "the queue mail is paused by ada (moving); manage.py jobs resume mail"
    )  # fmt: skip
    assert "1 problem" not in problems.sentence([remark])
    make("ready", queue="mail")
    [remark] = noted()
    assert (remark.severity, remark.text) == ("warning", "the queue mail is paused by ada (moving); 1 job waits")


def test_a_body_that_runs_for_long_or_does_not_heed():
    node = alive()
    make("running", node=node, age=60)
    assert noted() == []
    long, deaf = make("running", node=node, age=7200), make("running", node=node, age=600)
    Cancellation.objects.create(job=deaf.pk, at=timezone.now() - datetime.timedelta(seconds=300))
    assert {remark.about: remark.kind for remark in noted()} == {long.pk: "stuck", deaf.pk: "stuck"}


def test_no_worker_at_all():
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.command) == ("no_worker", "error", "celery -A shop worker")
    assert problems.sentence([remark]) == "1 problem: no worker is alive"
    make("ready", age=600)
    [remark] = noted()
    assert (remark.kind, remark.text) == (
        "no_worker",
        "no worker is alive, and the oldest ready job has waited 10 min",
    )
    alive(queues=["mails"])
    assert [(each.kind, each.command) for each in noted()] == [("starving", "celery -A shop worker -Q celery")]


def test_a_queue_waits_for_workers_that_are_busy_with_another_one():
    """It is broken only if one of them is free and takes nothing."""
    node = alive(queues=["mail", "slow"], concurrency=2)
    make("ready", queue="mail", age=600)
    [remark] = noted()
    assert (remark.kind, remark.severity) == ("standing", "error")
    for _ in range(2):
        make("running", queue="slow", node=node)
    [remark] = noted()
    assert (remark.kind, remark.severity) == ("busy", "info")


def test_a_queue_whose_worker_was_told_to_be_quiet():
    node = alive(queues=[])
    make("ready", age=600)
    [remark] = noted()
    assert (remark.kind, remark.command) == ("starving", f"manage.py jobs tell resume {str(node.pk)[:8]}")
    assert f"{node.hostname} was told to be quiet" in remark.meaning


def test_an_unknown_task_is_named():
    alive()
    make("scheduled", age=-60, task="shop.old", error={"type": "NotRegistered", "message": "no"})
    [remark] = noted()
    assert (remark.kind, remark.about, remark.since) == ("unknown_task", "shop.old", None)
    for name, minutes, known in (("new", 5, []), ("last", 10, ["shop.old"]), ("first", 60, ["shop.old"])):
        at = timezone.now() - datetime.timedelta(minutes=minutes)
        make_node(hostname=name, version=f"{name}-1", tasks=known, dead_at=at, signed_off=True)
    [remark] = noted()
    assert remark.text.endswith("; the last one that knew it was last, version last-1")
    assert remark.since == pytest.approx(600, abs=30)


def test_an_unknown_task_is_named_however_many_wait_for_their_time(monkeypatch):
    alive()
    monkeypatch.setattr(counts, "MOST", 3)
    for _ in range(5):
        make("scheduled", age=-60)
    make("scheduled", task="shop.new", run_at=PARKED, waits_for="task:shop.new")
    [remark] = noted()
    assert (remark.kind, remark.about, remark.number) == ("unknown_task", "shop.new", 1)
