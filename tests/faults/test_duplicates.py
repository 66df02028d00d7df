"""Messages arrive more often than once, late, in any order, or for jobs that are no more."""

from __future__ import annotations

import datetime
import json
import time
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F

from jobs import lifecycle
from jobs.models import ENDED, Job
from tests import tasks
from tests.faults import messages
from tests.faults.guards import CLAIM, FINISHED, guard
from tests.faults.ledger import LOST_MESSAGES, WORK
from tests.faults.manner import again
from tests.faults.worker import Worker, workers
from tests.harness import in_body, wait_ended
from tests.models import Effect
from tests.rows import make
from tests.servers import wait_for

#: Redis delivers again what was not acknowledged for this long, in seconds; a second or two later, that is.
VISIBLE_AGAIN = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


@pytest.mark.quick
@guard(*CLAIM)
def test_every_message_delivered_two_to_five_times_in_any_order(ledger, broker):
    """At once to four processes of two workers, and all of them again when the jobs have ended: one run each.

    Guard: the claim's condition ``state=READY`` (``lifecycle.claim``). Without it jobs run again, and the constraint
    ``jobs_job_finished`` and the fence of the settle still keep their effects from being committed twice.
    """
    ledger.enqueue(300, tasks.lingers)
    broker.drop_messages()
    messages.repeat(times=(2, 5))
    with workers(2):
        # The first message of some comes last, of a thousand.
        ledger.check(within=3 * WORK)
        messages.repeat(times=(1, 1))
        ledger.check(within=WORK)
        assert ledger.most_claims() == 1


@guard(*CLAIM, also=[FINISHED])
def test_newest_first(ledger, broker):
    """The messages arrive in the order of a stack, and the oldest wait for several times the grace.

    Guard: the claim's condition ``state=READY`` (``lifecycle.claim``), because those overtaken are published again.
    """
    ledger.enqueue(300, tasks.lingers)
    broker.drop_messages()
    messages.reverse()
    with Worker():
        ledger.check(within=LOST_MESSAGES)
        assert ledger.most_claims() == 1


@guard(*CLAIM, also=[FINISHED])
@guard("jobs/execution.py", "is_ours = isinstance(header, dict)", "is_ours = False", case="redis")
def test_messages_of_jobs_that_ended_hours_ago(ledger, broker, settings):
    """And of some whose rows were pruned since: neither is run, and no row comes back.

    Guard: the claim's condition ``state=READY`` (``lifecycle.claim``), and the header by which a message is known to
    have had a row once (``execution.run``).
    """
    ledger.enqueue(300)
    old = list(Job.objects.all())
    with workers(2) as both:
        ledger.check(within=WORK)
        then = datetime.timedelta(hours=5)
        Job.objects.update(created_at=F("created_at") - then, finished_at=F("finished_at") - then)
        messages.repeat(old, times=(1, 1))
        ledger.check(within=WORK)
        assert ledger.most_claims() == 1
        settings.JOBS = {**settings.JOBS, "RETENTION": 3600.0}
        call_command("jobs", "prune", "--once", stdout=StringIO())
        assert not Job.objects.exists()
        messages.repeat(old, times=(1, 1))
        ledger.check(within=WORK, pruned=True)
        for worker in both:
            worker.stop()
    assert not Job.objects.exists()
    ledger.check(within=WORK, pruned=True)


@guard("jobs/execution.py", "_take_from_row(run.request, job)", "pass")
def test_messages_of_the_first_attempt(ledger, broker, tmp_path):
    """They come again and again while the jobs are retried, exhausted and replayed: attempts are counted by the row.

    Guard: the row wins over the message (``execution._take_from_row``).
    """
    cured = tmp_path / "cured"
    exhausted = ledger.enqueue(40, tasks.gives_up, kwargs={"cured": str(cured)})
    ledger.enqueue(270)
    old = list(Job.objects.filter(task=tasks.gives_up.name))
    with workers(2):
        while waiting := set(Job.objects.exclude(state__in=ENDED).values_list("pk", flat=True)):
            messages.repeat([job for job in old if job.pk in waiting], times=(1, 1))
            time.sleep(0.5)
        ledger.check(within=WORK, otherwise=dict.fromkeys(exhausted, "failed"))
        failed = Job.objects.filter(state="failed")
        assert {(job.lease, len(job.errors)) for job in failed} == {(3, 3)}
        cured.touch()
        for key in failed.values_list("pk", flat=True):
            assert lifecycle.replay(key, "default")
        messages.repeat(old, times=(1, 2))
        ledger.check(within=WORK)
    assert ledger.most_claims() == 4


@pytest.mark.brokers("redis")
@guard(*CLAIM)
def test_redelivery_while_the_body_runs(ledger, broker, use_broker, tmp_path):
    """Redis takes the message for lost, because its worker's main process hangs, and another worker gets it.

    Guard: the claim's condition ``state=READY`` (``lifecycle.claim``).
    """
    use_broker(broker.url, **VISIBLE_AGAIN)
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.waits.delay("long", str(started), str(gate))
    ledger.note("long", long)
    ledger.enqueue(300)
    with Worker() as hanging:
        in_body(long.id, started)
        hanging.main.pause()
        with Worker() as other:
            other.said(f"job {long.id} is running: a duplicate message")
            gate.touch()
            ledger.check(within=WORK)
            hanging.main.resume()
            ledger.check(within=WORK)
            assert ledger.most_claims() == 1


@pytest.mark.brokers("redis")
@guard(*CLAIM)
def test_redelivery_of_what_waits_behind_a_long_body(ledger, broker, use_broker):
    """A worker holds messages for longer than Redis lets it; another one runs their jobs first.

    Guard: the claim's condition ``state=READY`` (``lifecycle.claim``).
    """
    use_broker(broker.url, **VISIBLE_AGAIN)
    ledger.note("long", tasks.slow.delay("long", 8))
    with Worker(concurrency=1) as first:
        ledger.enqueue(300)
        first.said("slow")
        with Worker():
            ledger.check(within=WORK)
            first.said("is succeeded: a duplicate message")
            assert ledger.most_claims() == 1


@pytest.mark.brokers("redis")
@guard("jobs/worker.py", "if holding := request.holding_time(parent.app):", "if holding := 0:")
def test_message_of_a_long_body_is_acknowledged_early(ledger, broker, use_broker):
    """A body that runs for more than twice the visibility timeout: its message has gone long before, and never returns.

    Guard: the messages of long bodies are acknowledged early (``request.acknowledge_long_ones``).
    """
    use_broker(broker.url, **{**VISIBLE_AGAIN, "visibility_timeout": 4})
    ledger.enqueue(300)
    with workers(2) as both:
        ledger.check(within=WORK)
        long = tasks.slow.delay("long", 9)
        ledger.note("long", long)
        wait_for(lambda: broker.server.call("HLEN", "unacked") == 1, 5, "the message is out")
        wait_for(lambda: broker.server.call("HLEN", "unacked") == 0, 5, "the message is acknowledged")
        assert Job.objects.filter(pk=long.id, state="running").exists()
        wait_ended(long.id)
        ledger.check(within=WORK)
        lines = [line for worker in both for line in worker.text().splitlines()]
        assert not [line for line in lines if long.id in line and "a duplicate message" in line]


@pytest.mark.brokers("rabbitmq")
@pytest.mark.parametrize("early", [False, again(True)], ids=["late", "early"])
@guard(*CLAIM, case="late")
@guard("jobs/worker.py", "if holding := request.holding_time(parent.app):", "if holding := 0:", case="early")
def test_body_longer_than_rabbitmq_waits_for_an_acknowledgement(ledger, broker, early):
    """Its ``consumer_timeout``: acknowledged early, nothing happens. Where it is shorter than we know, RabbitMQ closes
    the channel and delivers again; the worker lives, and its body is nobody else's.

    Guard: the messages of long bodies are acknowledged early (``request.acknowledge_long_ones``); of all copies of a
    message one claims the row (``lifecycle.claim``).
    """
    broker.impatient(3)
    ledger.enqueue(300)
    with workers(2, **({"JOBS_TEST_CONSUMER_TIMEOUT": "3"} if early else {})) as both:
        ledger.check(within=WORK)
        long = tasks.slow.delay("long", 9)
        ledger.note("long", long)
        wait_ended(long.id)
        ledger.check(within=WORK)
        assert any("PRECONDITION_FAILED" in worker.text() for worker in both) is not early
        assert all(worker.main.is_alive for worker in both)
        assert ledger.most_claims() == 1


@guard(
    "jobs/history.py",
    "state__in=states, finished_at__lt=now_plus(-age), created_at__lt=now_plus(-age)",
    "finished_at__lt=now_plus(-age), created_at__lt=now_plus(-age)",
    also=[("jobs/history.py", "pk__in=ids, state__in=states)._raw_delete", "pk__in=ids)._raw_delete")],
)
@guard(
    "jobs/history.py",
    "state__in=states, finished_at__lt=now_plus(-age), created_at__lt=now_plus(-age)",
    "created_at__lt=now_plus(-age)",
    also=[("jobs/history.py", "pk__in=ids, state__in=states)._raw_delete", "pk__in=ids)._raw_delete")],
)
def test_pruned_under_load(ledger, settings):
    """History is kept for a second only: what waits, what runs and what failed stays, and all of it is run.

    Guard: only what ended in the given states, long enough ago, is deleted (``history.ended``).
    """
    settings.JOBS = {**settings.JOBS, "RETENTION": 1.0, "PRUNE_INTERVAL": 0.3, "BATCH": 20}
    failing = ledger.enqueue(20, tasks.misbehaves, kwargs={"how": "deadline"})
    ledger.enqueue(50, countdown=6)
    ledger.note("long", tasks.slow.delay("long", 5))
    with workers(2):
        with ledger.load(300):
            wait_for(lambda: Effect.objects.count() - Job.objects.count() > 100, 60, "history is pruned")
        ledger.check(within=WORK, otherwise=dict.fromkeys(failing, "failed"), pruned=True)


@guard("jobs/companion.py", "prune.run_once(budget=PRUNE_BUDGET)", "prune.run_once()")
def test_much_history_to_prune(ledger, settings):
    """A retention that was shortened leaves much to delete: the relay has its turn all the same.

    Guard: one round of pruning has a budget (``companion.PRUNE_BUDGET``).
    """
    settings.JOBS = {**settings.JOBS, "RETENTION": 3600.0, "PRUNE_INTERVAL": 0.1, "BATCH": 2}
    old = Job.objects.filter(created_at__lt=make("succeeded", age=30 * 86400.0).created_at + datetime.timedelta(1))
    multiply(old.get(), 20_000)
    with Worker():
        lags = []
        for _ in range(10):
            ledger.enqueue(30, countdown=0.2)
            time.sleep(1)
            lags.append(status()["relay"]["lag_seconds"])
        assert 0 < old.count() < 19_000, "pruning is in full swing"
        assert max(lags) < 5, lags
        old._raw_delete(old.db)
        ledger.check(within=WORK, pruned=True)


def multiply(job: Job, times: int) -> None:
    """Copies of a row, under other ids."""
    columns = ", ".join(f'"{field.column}"' for field in Job._meta.concrete_fields if not field.primary_key)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO jobs_job (id, {columns}) SELECT gen_random_uuid(), {columns} "
            "FROM jobs_job, generate_series(1, %s) WHERE id = %s",
            [times, job.pk],
        )


def status() -> dict:
    out = StringIO()
    call_command("jobs", "status", "--live", "--json", stdout=out)
    return json.loads(out.getvalue())
