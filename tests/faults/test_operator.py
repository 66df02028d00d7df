"""People restore copies, cancel and replay while everything runs."""

from __future__ import annotations

import threading
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from jobs.contrib.operations import by_hand
from jobs.lifecycle import transitions
from jobs.models import Cancellation, Job
from tests import tasks
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_WORKER, WORK, Ledger
from tests.faults.manner import again
from tests.faults.producer import Producer
from tests.faults.worker import Worker, workers
from tests.helpers.harness import in_body
from tests.helpers.servers import wait_for
from tests.models import Effect, Order

#: A copy's own broker: sharing the original's would be another mistake.
ELSEWHERE = {"CELERY_BROKER_URL": "jobs://"}

#: A worker that never asks whose database it is, at its start and at every beat.
ASKS = "jobs.store.identity:check_all"


def jobs(*command: str) -> str:
    """``manage.py jobs``; of what it could not do it says which, and did the rest."""
    out = StringIO()
    with suppress(CommandError):
        call_command("jobs", *command, stdout=out, no_color=True)
    return out.getvalue()


def ids(**where: object) -> list[str]:
    return [str(key) for key in Job.objects.filter(**where).values_list("pk", flat=True)]


@pytest.mark.databases("postgres", "sqlite")
@pytest.mark.parametrize(
    ("cancel", "how"),
    [(True, "files"), (False, "dump"), again(True, "dump"), again(False, "files")],
    ids=["cancelled-files", "adopted-dump", "cancelled-dump", "adopted-files"],
)
@guard(ASKS)
@guard(
    Without("jobs.contrib.adoption.activation:cancel_waiting", "0"),
    Without("jobs.contrib.adoption.commands:adopt", "0", call="sum"),
)
def test_restored_copy(ledger, database, tmp_path, how, cancel):
    """A copy of a database at work, on another machine with its own broker: nothing runs there until it is adopted.

    The original goes on meanwhile. After ``adopt --cancel`` only new jobs run at the copy, after ``adopt`` all do.

    Guard: the database bears its mark, for which each worker asks, and what waits in a copy is cancelled.
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    running = tasks.waits.delay("running", str(started), str(gate))
    ledger.note("running", running)
    with Worker(concurrency=1):
        in_body(running.id, started)
        ledger.enqueue(150)
        ledger.enqueue(150, countdown=8)
        with database.copied(how):
            copied = dict.fromkeys(Order.objects.values_list("key", flat=True), "cancelled")
            states = {state: Job.objects.filter(state=state).count() for state in ("scheduled", "ready", "running")}
            assert states["running"] == 1
            assert min(states.values()) > 0
            gate.touch()
            refused_by_the_copy(states)
            jobs("adopt", *(["--cancel"] if cancel else []))
            with Producer(100, **ELSEWHERE) as producer, Worker(**ELSEWHERE):
                assert producer.wait() == 0
                Ledger().check(within=LOST_WORKER, otherwise=copied if cancel else {})
        ledger.check(within=WORK)


def refused_by_the_copy(states: dict[str, int]) -> None:
    with workers(2, **ELSEWHERE) as refused:
        for worker in refused:
            assert worker.process.wait(40) == 1
            assert "manage.py jobs adopt" in worker.text()
    for once in ("rescue", "prune"):
        jobs(once, "--once")
    assert {state: Job.objects.filter(state=state).count() for state in states} == states
    assert not Job.objects.filter(lease__gt=1).exists()
    assert not Effect.objects.exists()
    assert "is marked as another" in jobs("status")


@pytest.mark.quick
@guard(
    Without(
        "jobs.store.postgresql:SUCCEED",
        "",
        clause="AND NOT EXISTS (SELECT 1 FROM jobs_cancellation WHERE job = {{2}})",
    )
)
@guard(Without("jobs.lifecycle.transitions:cancel_all", "", clause=", state__in=WAITING"))
def test_jobs_cancelled_under_load(ledger, tmp_path):
    """Scheduled, ready, running and ended ones, from lists that are old when the operator comes to their end.

    Guard: a completion looks for the wish that it should not be, and only what waits is cancelled at once.
    """
    started, gate = tmp_path / "started", tmp_path / "gate"
    with workers(2):
        with ledger.load(300):
            held = tasks.gated.delay("held", str(started), str(gate))
            ledger.note("held", held)
            in_body(held.id, started)
            # Now, so that some still wait for their time when the first list is made.
            ledger.enqueue(150, countdown=6)
            assert "asked to end" in jobs("cancel", held.id)
            gate.touch()
            for _ in range(6):
                ledger.wait_committed(20)
                listed = ids()[::3]
                jobs("cancel", *listed)
                for key in listed:
                    transitions.ask_to_end(key, "default") or transitions.cancel(key, "default")
        ledger.check(within=WORK, perhaps_cancelled=Order.objects.values_list("key", flat=True))
        wait_for(lambda: not Cancellation.objects.exists(), WORK, "no wish is left over")
    assert Job.objects.get(pk=held.id).state == "cancelled"
    assert Job.objects.filter(state="cancelled", lease=0).exists()


@guard(Without("jobs.contrib.operations.by_hand:redirect", "", clause="state__in=states"))
def test_failed_jobs_replayed_in_bulk(ledger, tmp_path):
    """By two operators at once, from lists that are old by then.

    Guard: only what failed or was cancelled is run again.
    """
    cured = tmp_path / "cured"
    exhausted = ledger.enqueue(80, tasks.gives_up, kwargs={"cured": str(cured)})
    ledger.enqueue(220)
    with workers(2):
        ledger.check(within=WORK, otherwise=dict.fromkeys(exhausted, "failed"))
        cured.touch()
        failed = ids(state="failed")
        operators = [threading.Thread(target=replay_all, args=[failed]) for _ in range(2)]
        for operator in operators:
            operator.start()
        for operator in operators:
            operator.join()
        ledger.check(within=WORK)


def replay_all(failed: list[str]) -> None:
    try:
        for _ in range(3):
            for key in failed:
                by_hand.retry_by_hand(key, "default")
            jobs("retry", *failed)
    finally:
        connection.close()
