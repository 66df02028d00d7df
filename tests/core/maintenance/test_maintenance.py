"""The clock and rescue: side by side, in batches, and never stopped by one bad row."""

from __future__ import annotations

import datetime
import os
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import extensions, maintenance, store
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.claims import Claimer
from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import BODY, BUSY, IDLE, LONG, NAMED, worker_state
from jobs.maintenance import clock, rescue
from jobs.models import Cancellation, Job, Node, Pause
from jobs.store import base, heartbeats
from jobs.store.databases import SideDatabase
from tests import tasks
from tests.helpers.concurrency import Elsewhere, by_default, open_transaction
from tests.helpers.harness import claim, die_with
from tests.helpers.rows import MALFORMED, make, make_node
from tests.helpers.servers import wait_for
from tests.models import Order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """On a busy machine a look may be slow, and the next one come later than a test expects."""
    monkeypatch.setattr(maintenance, "QUICK", 60.0)


@pytest.fixture
def notified(monkeypatch):
    """The queues that the clock rang for, batch by batch."""
    rings: list[set[str]] = []
    monkeypatch.setattr(clock, "notify", lambda using, queues: rings.append(set(queues)))
    return rings


@pytest.fixture
def wakeup(monkeypatch):
    wakeup = Wakeup()
    monkeypatch.setattr(clock, "wakeup", wakeup)
    return wakeup


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


def run(job_id: str) -> Job:
    """Put a job into ``running`` on a node of its own."""
    job = claim(job_id, Node.objects.create(hostname="h", pid=1, queues=["celery"]).pk)
    assert job is not None
    return job


# What time brings


@pytest.mark.database
def test_what_is_due_becomes_ready_and_only_that(notified, wakeup):
    now, later = tasks.effect.delay("now"), tasks.effect.apply_async(("later",), countdown=60)
    due = tasks.effect.apply_async(("due",), countdown=60, queue="mail")
    Job.objects.filter(pk=due.id).update(run_at=ago(1))
    assert clock.tick() == {"due": 1, "expired": 0, "cancelled": 0}
    assert {str(pk) for pk in Job.objects.filter(state="ready").values_list("pk", flat=True)} == {now.id, due.id}
    assert Job.objects.get(pk=later.id).state == "scheduled"
    assert notified == [{"mail"}]
    assert wakeup.wait(0)
    assert clock.tick()["due"] == 0
    assert not wakeup.wait(0)


@pytest.mark.database
def test_clocks_side_by_side_make_each_job_due_once(wakeup):
    tasks.noop.delay_many([(n,) for n in range(300)], countdown=60)
    Job.objects.update(run_at=ago(1))
    done, errors = [], []

    def work():
        try:
            done.extend(clock.tick()["due"] for _ in range(3))
        except Exception as exc:
            errors.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum(done) == 300
    assert Job.objects.filter(state="ready").count() == 300


@pytest.mark.database
def test_a_long_backlog_comes_due_batch_by_batch_and_each_rings_at_once(settings, monkeypatch, notified, wakeup):
    settings.JOBS = {**settings.JOBS, "BATCH": 10}
    monkeypatch.setattr(clock, "DUE_BATCHES", 2)
    tasks.noop.delay_many([(n,) for n in range(90)], countdown=60)
    Job.objects.update(run_at=ago(1))
    assert clock.tick()["due"] == 90
    assert len(notified) == 3


def test_what_comes_due_later_does_not_wait_behind_a_mass(settings, monkeypatch, wakeup):
    settings.JOBS = {**settings.JOBS, "BATCH": 10}
    monkeypatch.setattr(clock, "LONGEST_TICK", 0.0)
    monkeypatch.setattr(clock, "DUE_BATCHES", 1)
    tasks.noop.delay_many([(n,) for n in range(90)], countdown=60)
    Job.objects.update(run_at=ago(2))
    later = make("scheduled", run_at=ago(1))
    clock.tick()
    assert Job.objects.get(pk=later.pk).state == "ready"
    assert Job.objects.filter(state="scheduled").count() == 71


def test_a_backlog_gives_way_after_a_while(settings, monkeypatch, wakeup):
    """Rescue is not the clock's, but expiry is, and the poll."""
    settings.JOBS = {**settings.JOBS, "BATCH": 20}
    monkeypatch.setattr(clock, "LONGEST_TICK", 0.0)
    monkeypatch.setattr(clock, "DUE_BATCHES", 1)
    tasks.noop.delay_many([(n,) for n in range(90)], countdown=60)
    tasks.noop.delay_many([(n,) for n in range(30)], expires=3600)
    Job.objects.filter(state="scheduled").update(run_at=ago(1))
    Job.objects.filter(state="ready").update(expires_at=ago(1))
    assert clock.tick() == {"due": 40, "expired": 20, "cancelled": 0}


@pytest.mark.database
@pytest.mark.parametrize("milliseconds", [0, 1, 999])
def test_a_time_at_a_whole_second_has_come_like_every_other(wakeup, milliseconds):
    """SQLite compares moments as texts: ``14.000`` and ``14`` are not the same one."""
    at = (ago(2) if milliseconds else ago(0)).replace(microsecond=1000 * milliseconds)
    make("scheduled", run_at=at)
    make("ready", expires_at=at)
    assert clock.tick() == {"due": 1, "expired": 1, "cancelled": 0}


@pytest.mark.database
def test_an_expired_job_is_cancelled_whether_it_was_due_or_not():
    jobs = [make(state, expires_at=ago(1), run_at=ago(-60)) for state in ("ready", "scheduled")]
    make("running", expires_at=ago(1))
    assert clock.tick()["expired"] == 2
    for job in jobs:
        job.refresh_from_db()
        assert (job.state, job.error["type"]) == ("cancelled", "Expired")
        assert job.finished_at is not None
    assert Job.objects.filter(state="running").exists(), "it was started in time"


@pytest.mark.parametrize("wrong", MALFORMED, ids=str)
def test_a_row_that_somebody_edited_keeps_no_other_from_coming_due(wakeup, wrong):
    bad, *_ = (make("scheduled", age=number) for number in (3, 2, 1))
    Job.objects.filter(pk=bad.pk).update(**wrong)
    assert clock.tick()["due"] == 3
    assert Job.objects.filter(state="ready").count() == 3


@pytest.mark.database
@pytest.mark.timeout(20)
def test_rows_that_another_session_has_locked_hold_up_no_other(side, settings, wakeup):
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time")
    settings.JOBS = {**settings.JOBS, "BATCH": 7}
    rows = {
        "due": [make("scheduled", age=10 - number / 10) for number in range(9)],
        "expired": [make("ready", expires_at=ago(10)) for _ in range(9)],
        "cancelled": [make("scheduled", age=-60) for _ in range(9)],
    }
    for job in rows["cancelled"]:
        Cancellation.objects.create(job=job.pk, kind="Cancelled", reason="")
    held = [job.pk for jobs in rows.values() for job in jobs[:5]]
    with open_transaction(lambda: list(Job.objects.select_for_update().filter(pk__in=held))):
        done = clock.tick()
        assert (done["due"], done["expired"]) == (4, 4)
        clock.tick()
        assert Cancellation.objects.count() == 5
    done = clock.tick()
    assert (done["due"], done["expired"]) == (5, 5)
    assert not Cancellation.objects.exists()


def test_an_extension_whose_table_is_missing_keeps_no_job_waiting(wakeup, monkeypatch, caplog):
    """A router may keep the tables of an app of its own out of a database of jobs."""
    stock = extensions.merged
    looks = {"missing": "(SELECT 1 FROM jobs_of_no_migration) IS NOT NULL"}
    monkeypatch.setattr(extensions, "merged", lambda door: looks if door == "looks" else stock(door))
    monkeypatch.setattr(extensions, "through", lambda door: ())
    monkeypatch.setattr(clock, "_unasked", set())
    job = make("scheduled", age=5)
    assert clock.tick()["due"] == 1
    assert Job.objects.get(pk=job.pk).state == "ready"
    clock.tick()
    assert caplog.text.count("the clock leaves out what extensions ask") == 1


@pytest.mark.database
def test_a_poll_wakes_a_process_for_what_no_ring_told_of(wakeup):
    worker_state.queues = ["mail"]
    make("ready")
    make("scheduled", queue="mail", age=-60)
    clock.tick()
    assert not wakeup.wait(0), "of another queue, and not due"
    make("ready", queue="mail")
    clock.tick()
    assert wakeup.wait(0)
    Pause.objects.create(queue="mail")
    clock.tick()
    assert not wakeup.wait(0), "paused"


# Rescue


@pytest.fixture
def side():
    side = SideDatabase()
    yield side
    side.close()


@pytest.mark.parametrize("wrong", MALFORMED, ids=str)
def test_a_row_that_somebody_edited_keeps_no_other_from_being_given_back(wrong):
    dead = make_node(dead_at=timezone.now())
    bad, _, _ = (make("running", node=dead) for _ in range(3))
    Job.objects.filter(pk=bad.pk).update(**wrong)
    assert rescue.rescue_all("default") == 3
    assert not Job.objects.filter(state="running").exists()


def test_a_row_that_cannot_be_given_back_is_told_of_once(monkeypatch, caplog):
    dead = make_node(dead_at=timezone.now())
    bad, _, _ = (make("running", node=dead) for _ in range(3))
    lose = transitions.lose

    def lose_but_one(job, *more):
        if job.pk == bad.pk:
            raise KeyError("unforeseen")
        return lose(job, *more)

    monkeypatch.setattr(transitions, "lose", lose_but_one)
    assert [rescue.rescue_all("default") for _ in range(3)] == [2, 0, 0]
    assert [job.pk for job in Job.objects.filter(state="running")] == [bad.pk]
    told = [record for record in caplog.records if getattr(record, "action", "") == "rescue_failed"]
    assert [record.job for record in told if record.levelname == "ERROR"] == [str(bad.pk)]


def test_a_row_that_met_another_transaction_is_given_back_by_the_next_look(monkeypatch, caplog):
    """Above READ COMMITTED the server may refuse one of two, and nothing is wrong with the row."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    make("running", node=make_node(dead_at=timezone.now()))
    order = Order.objects.create(key="met", job=uuid.uuid4())
    lose = transitions.lose

    def meet(job, *more):
        monkeypatch.setattr(transitions, "lose", lose)
        assert Elsewhere(lambda: Order.objects.update(key="theirs")).result() == 1
        Order.objects.filter(pk=order.pk).update(key="ours")

    monkeypatch.setattr(transitions, "lose", meet)
    with by_default("repeatable read"):
        connection.close()
        assert [rescue.rescue_all("default") for _ in range(2)] == [0, 1]
    connection.close()
    assert not [record for record in caplog.records if getattr(record, "action", "") == "rescue_failed"]


def test_a_node_whose_beat_stands_still_is_buried_and_its_jobs_go_back(side, settings):
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    job = run(tasks.effect.delay("a").id)
    heartbeats.first(side, job.node_id)
    alive = Node.objects.create(hostname="h", pid=2)
    heartbeats.first(side, alive.pk)
    watch = rescue.Rescue(side)
    began = time.monotonic()
    while not (done := watch.run_once()).get("nodes"):
        heartbeats.send(side, alive.pk)
        assert time.monotonic() - began < 30
        time.sleep(0.05)
    assert time.monotonic() - began >= 0.3
    assert done["nodes"] == 1
    row = Job.objects.get()
    assert (row.state, row.node_losses, row.crashes) == ("ready", 1, 0)
    assert row.errors[0]["type"] == "NodeLost"
    assert Node.objects.get(pk=alive.pk).dead_at is None
    assert not heartbeats.send(side, job.node_id), "the dead node notices at its next beat"


def test_a_rescuer_that_comes_second_leaves_the_next_run_alone(monkeypatch):
    """Between its look and its turn another one gave the job back, and a live worker claimed it."""
    dead, alive = make_node(), make_node()
    job = make()
    assert claim(job.pk, dead.pk)
    transitions.write_death(dead.pk, "default")
    end_sessions = rescue.end_sessions

    def give_back_and_claim(runs, using):
        monkeypatch.setattr(rescue, "end_sessions", end_sessions)
        assert rescue.rescue_all("default") == 1
        assert claim(job.pk, alive.pk)

    monkeypatch.setattr(rescue, "end_sessions", give_back_and_claim)
    assert rescue.rescue_all("default") == 0
    job.refresh_from_db()
    assert (job.state, job.node_id, job.node_losses) == ("running", alive.pk, 1)


def test_a_rescuer_that_was_away_calls_nobody_dead(side, settings):
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    node = Node.objects.create(hostname="h", pid=2)
    heartbeats.first(side, node.pk)
    watch = rescue.Rescue(side)
    watch.run_once()
    time.sleep(0.4)
    assert not watch.run_once().get("nodes"), "it saw nothing of the whole time"


def test_a_poison_job_ends_after_its_own_cap_and_losses_after_theirs():
    crashed, lost = tasks.noop.delay(), tasks.noop.delay()
    error = transitions.error_entry("E", "m")
    for number in range(3):
        Job.objects.filter(pk=crashed.id).update(state="ready")
        assert transitions.crash(run(crashed.id), error, 3)
        assert Job.objects.get(pk=crashed.id).state == ("failed" if number == 2 else ["ready", "scheduled"][number])
    for _ in range(10):
        Job.objects.filter(pk=lost.id).update(state="ready")
        assert transitions.lose(run(lost.id), error, 10)
    assert Job.objects.get(pk=lost.id).state == "failed"
    assert Job.objects.get(pk=lost.id).node_losses == 10


def test_a_rescuer_that_cannot_write_calls_nobody_dead(side, settings):
    """A server that lost its standby, or has no room left: everybody can read, and no beat is written."""
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    own, other = (Node.objects.create(hostname="h", pid=pid) for pid in (1, 2))
    for node in (own, other):
        heartbeats.first(side, node.pk)
    watch = rescue.Rescue(side, lambda: own.pk)
    for _ in range(20):
        assert not watch.run_once()["nodes"]
        time.sleep(0.05)
    began = time.monotonic()
    while not watch.run_once()["nodes"]:
        heartbeats.send(side, own.pk)
        time.sleep(0.05)
        assert time.monotonic() - began < 30
    assert time.monotonic() - began >= 0.3, "the other one gets the full time again"


def test_the_first_beat_after_an_outage_proves_nothing_of_the_time_before(side, settings, monkeypatch):
    """The other one beat just before the outage, and comes back a second later than this one."""
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 3, "DEAD_AFTER": 15}
    now = 0.0
    monkeypatch.setattr(rescue, "time", SimpleNamespace(monotonic=lambda: now))
    own, other = (Node.objects.create(hostname="h", pid=pid) for pid in (1, 2))
    for node in (own, other):
        heartbeats.first(side, node.pk)
    watch = rescue.Rescue(side, lambda: own.pk)
    watch.run_once()
    for now in (3.0, 13.0):  # noqa: B007
        heartbeats.send(side, own.pk)
        watch.run_once()
    now = 15.5
    assert not watch.run_once()["nodes"]


def test_a_node_that_beats_again_while_another_is_buried_lives(side, settings, monkeypatch):
    """The first burial waited for as long as nobody could write."""
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    nodes = [Node.objects.create(hostname="h", pid=pid) for pid in (1, 2)]
    for node in nodes:
        heartbeats.first(side, node.pk)
    bury = rescue.bury

    def bury_at_last(node_id):
        for node in nodes:
            heartbeats.send(side, node.pk)
        return bury(node_id)

    monkeypatch.setattr(rescue, "bury", bury_at_last)
    watch = rescue.Rescue(side)
    wait_for(lambda: watch.run_once()["nodes"], 5, "one is dead", step=0.05)
    assert Node.objects.filter(dead_at=None).count() == 1


def test_jobs_of_a_node_that_somebody_else_buried_are_given_back(side):
    job = run(tasks.effect.delay("a").id)
    Node.objects.filter(pk=job.node_id).update(dead_at=timezone.now())
    assert rescue.Rescue(side).run_once()["jobs"] == 1
    assert Job.objects.get().state == "ready"


def batch() -> list[Job]:
    """One claim of five rows, in its order, by a node of its own."""
    for age in (5, 4, 3, 2, 1):
        make(age=age)
    return Claimer().claim("default", "celery", make_node().pk, 5)


@pytest.mark.database
def test_of_a_dead_machines_claim_only_what_may_have_been_begun_counts():
    """The rows run in their order, and each is finished before the next one begins."""
    done, begun, *waiting = batch()
    assert transitions.succeed(done, None, 0.0)
    transitions.write_death(done.node_id, "default")
    assert rescue.rescue_all("default") == 4
    assert states(begun, *waiting) == [("ready", 0, 1), *[("ready", 0, 0)] * 3]
    assert [job.errors for job in waiting] == [[], [], []]


@pytest.mark.database
def test_of_a_dead_machines_old_claim_the_renewed_row_counts():
    """It is renewed before it is begun; the first of the others has not been begun then."""
    done, begun, *waiting = batch()
    assert transitions.succeed(done, None, 0.0)
    assert claims.renew(begun)
    transitions.write_death(done.node_id, "default")
    assert rescue.rescue_all("default") == 4
    assert states(begun, *waiting) == [("ready", 0, 1), *[("ready", 0, 0)] * 3]


def test_a_rescuer_that_comes_in_between_counts_nobody_else(monkeypatch):
    """Two look at the same dead claim, or one is killed in the middle: the row that counts goes back last."""
    begun, *waiting = batch()
    transitions.write_death(begun.node_id, "default")
    finish, looks = transitions.finish_running, []

    def settle_and_look(*args, **where):
        if not looks:
            looks.append(True)
            rescue.rescue_all("default")
        return finish(*args, **where)

    monkeypatch.setattr(transitions, "finish_running", settle_and_look)
    rescue.rescue_all("default")
    assert states(begun, *waiting) == [("ready", 0, 1), *[("ready", 0, 0)] * 4]


@pytest.mark.database
@pytest.mark.skipif(connection.vendor == "sqlite", reason="there are no locks of rows")
def test_as_long_as_a_row_of_a_claim_is_locked_none_of_it_counts(caplog):
    """Else the locked one, which was never begun, would be the first that is left of its claim, and count."""
    begun, *waiting = batch()
    transitions.write_death(begun.node_id, "default")
    with open_transaction(lambda: list(Job.objects.select_for_update().filter(pk=waiting[1].pk))):
        assert [rescue.rescue_all("default") for _ in range(3)] == [3, 0, 0]
        assert states(begun, waiting[1]) == [("running", 0, 0), ("running", 0, 0)]
        told = [record.job for record in caplog.records if getattr(record, "action", "") == "rescue_waits"]
        assert told == [str(begun.pk)], "once, and not at each look"
    assert rescue.rescue_all("default") == 2
    assert states(begun, *waiting) == [("ready", 0, 1), *[("ready", 0, 0)] * 4]


def test_looks_at_what_runs_are_seldom_where_they_are_slow(own, side, monkeypatch):
    """Beside an open snapshot they step over all jobs that ended since: each worker did so with each beat."""
    looked: list[str] = []
    monkeypatch.setattr(maintenance, "QUICK", 0.0)
    monkeypatch.setattr(rescue, "RARELY", 10**9)
    monkeypatch.setattr(rescue, "rescue_all", lambda alias: bool(looked.append("dead")))
    watch = rescue.Rescue(side)
    for _ in range(3):
        watch.run_once()
    assert looked == ["dead"]
    monkeypatch.setattr(watch, "_silent", lambda: [dead])
    dead = make_node().pk
    heartbeats.first(side, dead)
    watch._seen[dead] = (heartbeats.read(side)[dead], 0.0)
    watch.run_once()
    assert looked == ["dead", "dead"], "but not when a node has died"
    monkeypatch.setattr(rescue, "_runs", lambda alias, **where: looked.append("own") or [])
    own = rescue.OwnJobs(os.getpid())
    for _ in range(3):
        own.hand_back_orphans()
    assert looked == ["dead", "dead", "own"]


def test_after_a_look_that_had_to_wait_the_next_comes_soon(monkeypatch):
    """The database was locked, or away, for 20 s: a dead worker's jobs waited for another 17 minutes."""
    now = [0.0]
    monkeypatch.setattr(maintenance, "QUICK", 0.02)
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def waits():
        now[0] += 20.0
        raise OperationalError("database is locked")

    seldom = maintenance.Seldom(rescue.RARELY)
    with pytest.raises(OperationalError):
        seldom.take("default", waits)
    assert seldom.take("default", lambda: 1) == 0
    now[0] += 31.0
    assert seldom.take("default", lambda: 1) == 1


def test_of_a_claim_whose_answer_was_lost_one_row_counts(own):
    rows = batch()
    Job.objects.update(node=worker_state.node)
    assert [own.hand_back_orphans() for _ in range(3)] == [0, 0, 5]
    assert states(*rows) == [("ready", 0, 1), *[("ready", 0, 0)] * 4]


def test_an_idle_tick_costs_a_fixed_number_of_statements(side):
    """None per job: the same with 3 and with 300 jobs that wait or ended."""
    worker_state.queues = ["celery"]
    counts = []
    for size in (3, 300):
        tasks.noop.delay_many([(n,) for n in range(size)], countdown=3600)
        watch = rescue.Rescue(side)
        clock.tick()
        watch.run_once()
        with CaptureQueriesContext(connection) as queries:
            clock.tick()
            watch.run_once()
        counts.append(len(queries))
    assert counts[0] == counts[1]
    # On PostgreSQL the clock's look, and whether anything runs, go past Django's cursor, which takes longer than they.
    assert counts[0] <= (3 if connection.vendor == "postgresql" else 5)


@pytest.mark.database
def test_a_look_that_finds_nothing_says_what_a_whole_one_says():
    """On PostgreSQL it is a shorter one; what it finds is the whole one's to say."""
    at, asked = store.of("default"), extensions.merged("looks").values()
    look = base.Store.look
    for queues in ([], ["celery"], ["it's", "a\\b", "50 %"]):
        quick, whole = at.look(queues, asked), look(at, queues, asked)
        assert quick[1:] == whole[1:]
        assert connection.vendor != "postgresql" or abs((quick.now - whole.now).total_seconds()) < 5
    make("ready", queue="it's")
    assert at.look(["it's"], asked).is_ready
    assert not at.look(["its"], asked).is_ready
    assert at.look([], asked).due is None
    make("scheduled", age=5)
    assert at.look([], asked).due is not None


# The jobs of this very node


@pytest.fixture
def own(node):
    return rescue.OwnJobs(os.getpid())


def claimed(count: int = 1) -> list[Job]:
    return [claim(tasks.effect.delay(str(number)).id) for number in range(count)]


def states(*jobs: Job) -> list[tuple]:
    for job in jobs:
        job.refresh_from_db()
    return [(job.state, job.crashes, job.node_losses) for job in jobs]


def test_rows_that_run_here_in_no_process_go_back_after_two_beats(own):
    [job] = claimed()
    assert [own.hand_back_orphans() for _ in range(3)] == [0, 0, 1]
    assert states(job) == [("ready", 0, 1)]
    assert job.errors[0]["type"] == "Orphaned"


def test_rows_of_other_nodes_are_none_of_ours(own):
    job = run(tasks.effect.delay("a").id)
    assert [own.hand_back_orphans() for _ in range(4)] == [0, 0, 0, 0]
    assert states(job) == [("running", 0, 0)]


@pytest.mark.parametrize("as_batch", [False, True])
def test_a_row_that_a_process_has_stays(own, as_batch):
    """In hand, or waiting behind another one of its claim."""
    [job] = claimed()
    slot = worker_state.take()
    token = job.token + 1 if as_batch else job.token
    slot.name(uuid.uuid4() if as_batch else job.pk, job.lease, token, job.token, None, None, b"{}")
    for _ in range(5):
        assert own.hand_back_orphans() == 0
    assert own.finish_dead() == 0
    assert states(job) == [("running", 0, 0)]


def test_a_row_is_no_orphan_while_a_process_claims(own):
    """It has the row from the database, and has not yet said which job it runs; the worker state has its claim."""
    [job] = claimed()
    slot = worker_state.take()
    slot.rest(BUSY, job.token)
    for _ in range(5):
        assert own.hand_back_orphans() == 0
    slot.rest(IDLE)
    assert [own.hand_back_orphans() for _ in range(3)] == [0, 0, 1]


def test_a_process_that_died_in_a_body_counts_for_this_job_alone(own, wakeup, monkeypatch):
    monkeypatch.setattr(rescue, "wakeup", wakeup)
    begun, waiting, other = claimed(3)
    Job.objects.filter(pk=waiting.pk).update(token=begun.token)
    die_with(worker_state, begun, batch=begun.token)
    assert own.finish_dead() == 2
    assert states(begun, waiting, other) == [("ready", 1, 0), ("ready", 0, 0), ("running", 0, 0)]
    assert begun.errors[0]["type"] == "WorkerLostError"
    assert waiting.errors == []
    assert wakeup.wait(0), "somebody else is to take them"
    assert worker_state.occupied() == []


def test_a_process_that_died_beside_a_body_is_no_crash(own):
    """In the claim, the finish, or the COMMIT."""
    [job] = claimed()
    die_with(worker_state, job, phase=NAMED)
    assert own.finish_dead() == 1
    assert states(job) == [("ready", 0, 1)]


def test_a_process_that_died_with_nothing_in_hand_leaves_its_slot(own):
    [job] = claimed()
    die_with(worker_state, job, phase=BUSY)
    assert own.finish_dead() == 0
    assert worker_state.occupied() == []
    assert states(job) == [("running", 0, 0)], "two beats give it back"


def test_a_death_that_the_node_has_announced_is_none_of_the_jobs_doing(own):
    timed_out, revoked = claimed(2)
    own.expect_end(die_with(worker_state, timed_out), "TimeLimitExceeded", "TimeLimitExceeded(2)")
    own.expect_end(die_with(worker_state, revoked), "Revoked", "by hand")
    assert own.finish_dead() == 2
    assert states(timed_out, revoked) == [("failed", 0, 0), ("cancelled", 0, 0)]
    assert (timed_out.error["type"], revoked.error["type"]) == ("TimeLimitExceeded", "Revoked")


def test_processes_that_end_with_their_worker_count_nowhere(own):
    [job] = claimed()
    worker_state.note_stop()
    die_with(worker_state, job)
    assert own.finish_dead() == 1
    assert states(job) == [("ready", 0, 0)]


def test_a_process_whose_main_process_is_gone_was_lost_with_it(node):
    if (main := os.fork()) == 0:
        os._exit(0)
    os.waitpid(main, 0)
    [job] = claimed()
    die_with(worker_state, job)
    assert rescue.OwnJobs(main).finish_dead() == 1
    assert states(job) == [("ready", 0, 1)]


def test_a_dead_run_whose_job_was_given_to_another_changes_nothing(own):
    [job] = claimed()
    die_with(worker_state, job)
    Job.objects.filter(pk=job.pk).update(lease=2, token=9)
    assert own.finish_dead() == 0
    assert states(job) == [("running", 0, 0)]
    assert worker_state.occupied() == [], "there is nothing to finish any more"


@pytest.mark.database
def test_a_dead_run_whose_row_is_locked_is_settled_later(own):
    """What is left of the process in the database sits on it."""
    if connection.vendor != "postgresql":
        pytest.skip("one writer at a time")
    [job] = claimed()
    slot = die_with(worker_state, job)
    with open_transaction(lambda: Job.objects.select_for_update().get(pk=job.pk)):
        assert own.finish_dead() == 0
        assert worker_state.occupied() == [slot]
    assert own.finish_dead() == 1
    assert worker_state.occupied() == []


def test_what_waits_behind_a_long_body_goes_back(own, wakeup, monkeypatch):
    monkeypatch.setattr(rescue, "wakeup", wakeup)
    begun, waiting = claimed(2)
    Job.objects.filter(pk=waiting.pk).update(token=begun.token)
    slot = worker_state.take()
    slot.name(begun.pk, begun.lease, begun.token, begun.token, None, None, b"{}")
    assert own.hand_back_waiting() == 0, "it is not long yet"
    assert not wakeup.wait(0)
    monkeypatch.setattr("jobs.lifecycle.worker_state.LONG", -1.0)
    slot.enter(BODY)
    assert own.hand_back_waiting() == 1
    assert states(begun, waiting) == [("running", 0, 0), ("ready", 0, 0)]
    assert wakeup.wait(0)
    assert LONG == 2.0


def test_what_waits_behind_a_long_body_is_given_back_once(own, monkeypatch):
    """The body may take an hour, and the supervisor looks five times a second. What failed is tried again."""
    begun, waiting = claimed(2)
    Job.objects.filter(pk=waiting.pk).update(token=begun.token)
    slot = worker_state.take()
    slot.name(begun.pk, begun.lease, begun.token, begun.token, None, None, b"{}")
    monkeypatch.setattr("jobs.lifecycle.worker_state.LONG", -1.0)
    real, asked = transitions.hand_back_claim, []

    def refused(*args):
        asked.append(args)
        raise OperationalError("lock_timeout")

    slot.enter(BODY)
    monkeypatch.setattr("jobs.lifecycle.transitions.hand_back_claim", refused)
    assert own.hand_back_waiting() == 0
    assert len(asked) == 1
    monkeypatch.setattr("jobs.lifecycle.transitions.hand_back_claim", real)
    assert own.hand_back_waiting() == 1
    with CaptureQueriesContext(connection) as queries:
        assert own.hand_back_waiting() == 0
    assert len(queries) == 0


def test_who_was_in_time_when_the_board_was_read_keeps_its_jobs(own, monkeypatch):
    """It may have begun the next one by now, under the claim's token, while the rows of another were given back."""
    monkeypatch.setattr("jobs.lifecycle.worker_state.LONG", 0.1)
    long, young = worker_state.take(), worker_state.take()
    long.name(uuid.uuid4(), 1, 1, 1, None, None, b"{}")
    time.sleep(0.11)
    young.name(uuid.uuid4(), 1, 2, 2, None, None, b"{}")
    given_back = []

    def hand_back(alias, node, token, begun):
        given_back.append(token)
        time.sleep(0.11)
        return 0

    monkeypatch.setattr("jobs.lifecycle.transitions.hand_back_claim", hand_back)
    own.hand_back_waiting()
    assert given_back == [1]


@pytest.mark.parametrize("known", ["there", "nowhere", "at home only"])
def test_the_jobs_of_a_node_that_a_database_has_forgotten_go_back(second, side, settings, known):
    """The first database was restored from an older backup, or forgot the node while the other one was away."""
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 1.0}
    node, living = Node(pk=uuid.uuid4(), hostname="web1", pid=1), make_node()
    Node.objects.using(second).bulk_create([node, living] if known == "there" else [living])
    if known == "at home only":
        make_node(pk=node.pk, dead_at=timezone.now())
    job, other = make("running", node=living), make("running", node=living)
    for row, owner in ((job, node), (other, living)):
        Job.objects.using(second).bulk_create([row])
        Job.objects.using(second).filter(pk=row.pk).update(node=owner.pk)
    Job.objects.all().delete()
    heartbeats.first(side, living.pk)
    watch, began, nodes = rescue.Rescue(side), time.monotonic(), 0
    rows = Job.objects.using(second)
    while rows.get(pk=job.pk).state == "running":
        heartbeats.send(side, living.pk)
        nodes += watch.run_once()["nodes"]
        time.sleep(0.05)
        assert time.monotonic() - began < 30
    if known != "at home only":
        assert time.monotonic() - began >= 1.0, "it may just have registered itself"
        assert nodes == 1
    assert Node.objects.using(second).get(pk=node.pk).dead_at is not None, "it claims nothing more there"
    assert (rows.get(pk=job.pk).node_losses, rows.get(pk=other.pk).state) == (1, "running")


def test_a_stopped_worker_hands_back_what_its_processes_left(own):
    jobs, other = claimed(2), run(tasks.effect.delay("other").id)
    assert own.hand_back_all() == 2
    assert states(*jobs, other) == [("ready", 0, 0), ("ready", 0, 0), ("running", 0, 0)]


def test_a_second_database_that_is_away_keeps_nobody_from_being_rescued(second, side, settings, node):
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    job = run(tasks.effect.delay("a").id)
    heartbeats.first(side, job.node_id)
    with connections[second].cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_job RENAME TO away")
        cursor.execute("ALTER TABLE jobs_node RENAME TO jobs_away")
    watch = rescue.Rescue(side)
    wait_for(lambda: watch.run_once()["nodes"], 5, "it is dead", step=0.05)
    job.refresh_from_db()
    assert (job.state, job.node_losses) == ("ready", 1)
    worker_state.node = Node.objects.create(hostname="here", pid=1).pk
    crashed, _ = claimed(2)
    own = rescue.OwnJobs(os.getpid())
    die_with(worker_state, crashed, phase=BODY)
    assert own.finish_dead() == 1
    assert [own.hand_back_orphans() for _ in range(3)] == [0, 0, 1]
    assert not Job.objects.filter(state="running").exists()
    assert len(worker_state.occupied()) == 1, "perhaps its job is in the other database"
