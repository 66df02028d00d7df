"""Relay, rescue and prune: side by side, in batches, and never stopped by one bad row."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import uuid

import pytest
from celery import current_app
from django.db import connection, connections
from django.utils import timezone

from jobs import lifecycle, publisher
from jobs.board import board
from jobs.databases import SideDatabase
from jobs.maintenance import rescue
from jobs.maintenance.prune import Prune
from jobs.maintenance.relay import Relay
from jobs.models import Cancellation, Job, Node
from tests import tasks
from tests.rows import MALFORMED, make, make_node
from tests.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _left_to_the_relay(settings):
    settings.JOBS = {**settings.JOBS, "PUBLISH": "relay", "GRACE": 10.0}


@pytest.fixture
def published(monkeypatch):
    """What leaves, in place of a broker; ``up`` and ``depth`` are what it says of itself."""

    class Broker:
        sent: list[str] = []
        up = True
        depth = 0

    broker = Broker()
    broker.sent = []

    def publish(jobs, using, app, **how):
        jobs = list(jobs)
        if not broker.up:
            return jobs
        broker.sent += [str(job.pk) for job in jobs]
        return []

    monkeypatch.setattr(publisher, "publish", publish)
    monkeypatch.setattr(publisher, "is_up", lambda app: broker.up)
    monkeypatch.setattr(publisher, "depth", lambda app, queue: broker.depth)
    return broker


def ago(seconds: float):
    return timezone.now() - timezone.timedelta(seconds=seconds)


def run(job_id: str, **changes) -> Job:
    """Put a job into ``running`` on a node of its own."""
    node = Node.objects.create(hostname="h", pid=1, queues=["celery"])
    job = lifecycle.claim(uuid.UUID(job_id), node.pk, "default")
    assert job is not None
    if changes:
        Job.objects.filter(pk=job.pk).update(**changes)
    return job


# Relay


def test_the_relay_publishes_what_is_due_and_only_that(published):
    due, later = tasks.effect.delay("due"), tasks.effect.apply_async(("later",), countdown=60)
    past = tasks.effect.apply_async(("past",), countdown=60)
    Job.objects.filter(pk=past.id).update(run_at=ago(1))
    assert Relay().run_once()["published"] == 2
    assert set(published.sent) == {due.id, past.id}
    assert Job.objects.get(pk=later.id).state == "scheduled"
    assert Job.objects.get(pk=past.id).state == "ready"
    assert Relay().run_once()["published"] == 0


def test_the_relay_leaves_the_rows_alone_while_the_broker_is_down(published):
    tasks.effect.delay("a")
    published.up = False
    relay = Relay()
    assert relay.run_once()["published"] == 0
    assert Job.objects.filter(dispatched_at=None).count() == 1
    published.up = True
    assert relay.run_once()["published"] == 1


def test_relays_side_by_side_publish_each_job_once(published):
    results = tasks.noop.delay_many([(n,) for n in range(300)])
    errors = []

    def work():
        try:
            for _ in range(3):
                Relay().run_once()
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
    assert sorted(published.sent) == sorted(result.id for result in results)


def test_messages_that_cannot_be_built_stop_nobody(settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 2}
    bad = tasks.noop.delay_many([(n,) for n in range(4)])
    Job.objects.update(options={"broken": True})
    good = tasks.noop.delay()
    relay = Relay()
    for _ in range(3):
        relay.run_once()
    assert Job.objects.get(pk=good.id).dispatched_at is not None
    job = Job.objects.get(pk=bad[0].id)
    assert (job.state, job.error["type"]) == ("scheduled", "KeyError")
    assert "could not be built" in job.error["message"]


@pytest.mark.parametrize("wrong", MALFORMED, ids=str)
def test_a_row_that_somebody_edited_keeps_no_other_from_being_given_back(wrong):
    dead = make_node(dead_at=timezone.now())
    bad, _, _ = (make("running", node=dead) for _ in range(3))
    Job.objects.filter(pk=bad.pk).update(**wrong)
    assert rescue.give_back_all("default") == 3
    assert not Job.objects.filter(state="running").exists()


def test_a_row_that_cannot_be_given_back_is_told_of_once(monkeypatch, caplog):
    dead = make_node(dead_at=timezone.now())
    bad, _, _ = (make("running", node=dead) for _ in range(3))
    lose = lifecycle.lose

    def lose_but_one(job, *more):
        if job.pk == bad.pk:
            raise KeyError("unforeseen")
        return lose(job, *more)

    monkeypatch.setattr(lifecycle, "lose", lose_but_one)
    assert [rescue.give_back_all("default") for _ in range(3)] == [2, 0, 0]
    assert [job.pk for job in Job.objects.filter(state="running")] == [bad.pk]
    told = [record for record in caplog.records if getattr(record, "action", "") == "rescue_failed"]
    assert [record.job for record in told if record.levelname == "ERROR"] == [str(bad.pk)]


@pytest.mark.parametrize("wrong", MALFORMED, ids=str)
def test_a_row_that_somebody_edited_keeps_no_other_from_being_published(wrong):
    bad, *good = (make("scheduled", age=number) for number in (3, 2, 1))
    Job.objects.filter(pk=bad.pk).update(**wrong)
    if {"error", "errors"} & set(wrong):
        Job.objects.filter(pk=bad.pk).update(options={"broken": True})
    Relay().run_once()
    left = set(Job.objects.filter(dispatched_at__isnull=False).values_list("pk", flat=True))
    assert {job.pk for job in good} <= left
    bad.refresh_from_db()
    assert bad.pk in left or (bad.state, bad.error["type"] != "T") == ("scheduled", True)


@pytest.mark.database
@pytest.mark.timeout(20)
def test_rows_that_another_session_has_locked_hold_up_no_other(published, side, settings):
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time")
    settings.JOBS = {**settings.JOBS, "BATCH": 7}
    long_ago = 400 * 86400.0
    rows = {
        "published": [make("scheduled", age=10 - number / 10) for number in range(9)],
        "expired": [make("ready", expires_at=ago(10), dispatched_at=ago(10)) for _ in range(9)],
        "cancelled": [make("scheduled", age=-60) for _ in range(9)],
        "jobs": [make("succeeded", age=long_ago) for _ in range(9)],
    }
    for job in rows["cancelled"]:
        Cancellation.objects.create(job=job.pk, kind="Cancelled", reason="")
    held = [job.pk for jobs in rows.values() for job in jobs[:5]]
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM jobs_job WHERE id = ANY(%s) FOR UPDATE", [held])
        done = Relay().run_once() | Prune(side).run_once()
        assert (done["published"], done["expired"], done["jobs"]) == (4, 4, 4)
        Relay().run_once()
        assert Cancellation.objects.count() == 5
        assert lifecycle.undispatch([job.pk for job in rows["published"]], "default") == 4
        assert not lifecycle.postpone(rows["expired"][0], 5, lifecycle.error_entry("Held", ""))
        # The server lets go of what a closed connection had locked only when it notices.
        other.rollback()
    finally:
        other.close()
    done = Relay().run_once() | Prune(side).run_once()
    assert (done["published"], done["expired"], done["jobs"]) == (9, 5, 5)
    assert not Cancellation.objects.exists()


def test_an_expired_job_is_cancelled(published):
    result = tasks.effect.apply_async(("a",), expires=3600)
    Job.objects.update(expires_at=ago(1))
    assert Relay().run_once()["expired"] == 1
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.error["type"]) == ("cancelled", "Expired")
    assert published.sent == []


def test_a_published_job_is_left_alone_within_its_grace(published):
    tasks.effect.delay("a")
    Job.objects.update(dispatched_at=ago(5))
    assert Relay().run_once()["republished"] == 0


def test_an_empty_queue_brings_published_jobs_back_and_doubles_their_grace(published):
    result = tasks.effect.delay("a")
    Job.objects.update(dispatched_at=ago(11))
    assert Relay().run_once()["republished"] == 1
    assert published.sent == [result.id]
    assert Job.objects.get().republished == 1
    Job.objects.update(dispatched_at=ago(11))
    assert Relay().run_once()["republished"] == 0
    Job.objects.update(dispatched_at=ago(21))
    assert Relay().run_once()["republished"] == 1


def test_an_empty_queue_brings_all_of_a_long_backlog_back(published, settings, monkeypatch):
    """The first copies fill the queue again, and must not hide what else was lost."""
    settings.JOBS = {**settings.JOBS, "BATCH": 20}
    tasks.noop.delay_many([(n,) for n in range(90)])
    Job.objects.update(dispatched_at=ago(60))
    relay = Relay()
    publish = publisher.publish

    def fill(*args, **kwargs):
        published.depth = 20
        return publish(*args, **kwargs)

    monkeypatch.setattr(publisher, "publish", fill)
    assert relay.run_once()["republished"] == 90
    assert len(set(published.sent)) == 90
    relay._next_look = 0
    assert relay.run_once()["republished"] == 0


def test_a_long_backlog_is_not_published_again(published):
    tasks.noop.delay_many([(n,) for n in range(50)])
    Job.objects.update(dispatched_at=ago(3600))
    published.depth = 50
    relay = Relay()
    for _ in range(3):
        relay._next_look = 0
        assert relay.run_once()["republished"] == 0


def test_a_job_that_was_overtaken_a_grace_ago_is_published_again(published):
    lost, younger, waiting = (tasks.effect.delay(name) for name in ("lost", "younger", "waiting"))
    Job.objects.filter(pk=lost.id).update(dispatched_at=ago(60))
    Job.objects.filter(pk=younger.id).update(dispatched_at=ago(40))
    Job.objects.filter(pk=waiting.id).update(dispatched_at=ago(30))
    run(younger.id)
    published.depth = 7
    relay = Relay()
    assert relay.run_once()["republished"] == 0, "only just seen running"
    relay._suspects["default"]._rotated -= 11
    for _ in range(2):
        relay._next_look = 0
        relay.run_once()
    assert published.sent == [lost.id]


def test_a_job_of_a_priority_that_nobody_else_has_is_found(published):
    """Nothing of its priority will ever run after it, and the queue is never empty."""
    rare, younger = tasks.effect.apply_async(("rare",), priority=9), tasks.effect.delay("younger")
    tasks.noop.delay_many([(n,) for n in range(5)], priority=3)
    Job.objects.filter(priority=3).update(dispatched_at=ago(150))
    Job.objects.filter(pk=rare.id).update(dispatched_at=ago(160))
    Job.objects.filter(pk=younger.id).update(dispatched_at=ago(15))
    run(younger.id)
    published.depth = 7
    relay = Relay()
    relay.run_once()
    relay._suspects["default"]._rotated -= 11
    for _ in range(2):
        relay._next_look = 0
        relay.run_once()
    assert published.sent[:1] == [rare.id]
    assert len(published.sent) <= 2, "one in each look: it may only be the least of all"


@pytest.mark.database
@pytest.mark.parametrize("others", [[], [-10], [10]])
def test_a_message_that_was_lost_at_a_whole_second_is_found(published, others):
    """SQLite's clock writes ``14.000`` and Django ``14``, which as text is less."""
    second = ago(60).replace(microsecond=0)
    results = tasks.noop.delay_many([(n,) for n in range(1 + len(others))])
    for result, later in zip(results, [0, *others], strict=True):
        at = second + timezone.timedelta(milliseconds=later)
        with connection.cursor() as cursor:
            key = result.id if connection.vendor == "postgresql" else result.id.replace("-", "")
            text = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
            cursor.execute("UPDATE jobs_job SET dispatched_at = %s WHERE id = %s", [text, key])
    assert Relay().run_once()["republished"] == len(results)


def test_the_death_of_a_node_brings_back_what_it_may_have_held(published):
    tasks.noop.delay_many([(n,) for n in range(300)])
    Job.objects.update(dispatched_at=ago(60))
    Node.objects.create(hostname="h", pid=1, queues=["celery"], dead_at=ago(30))
    published.depth = 300
    relay = Relay()
    assert relay.run_once()["republished"] == 100, "bounded by what one node can hold"
    relay._next_look = 0
    assert relay.run_once()["republished"] == 0


# Rescue


@pytest.fixture
def side():
    side = SideDatabase()
    yield side
    side.close()


def test_a_node_whose_beat_stands_still_is_buried_and_its_jobs_go_back(side, settings):
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    job = run(tasks.effect.delay("a").id)
    rescue.first_beat(side, job.node_id)
    alive = Node.objects.create(hostname="h", pid=2)
    rescue.first_beat(side, alive.pk)
    watch = rescue.Rescue(side)
    began = time.monotonic()
    while not (done := watch.run_once()).get("nodes"):
        rescue.beat(side, alive.pk)
        assert time.monotonic() - began < 5
        time.sleep(0.05)
    assert time.monotonic() - began >= 0.3
    assert done["nodes"] == 1
    row = Job.objects.get()
    assert (row.state, row.node_losses, row.crashes, row.dispatched_at) == ("ready", 1, 0, None)
    assert row.errors[0]["type"] == "NodeLost"
    assert Node.objects.get(pk=alive.pk).dead_at is None
    assert not rescue.beat(side, job.node_id), "the dead node notices at its next beat"


def test_a_rescuer_that_was_away_calls_nobody_dead(side, settings):
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    node = Node.objects.create(hostname="h", pid=2)
    rescue.first_beat(side, node.pk)
    watch = rescue.Rescue(side)
    watch.run_once()
    time.sleep(0.4)
    assert not watch.run_once().get("nodes"), "it saw nothing of the whole time"


def test_a_poison_job_ends_after_its_own_cap_and_losses_after_theirs():
    crashed, lost = tasks.noop.delay(), tasks.noop.delay()
    error = lifecycle.error_entry("E", "m")
    for number in range(3):
        Job.objects.filter(pk=crashed.id).update(state="ready")
        assert lifecycle.crash(run(crashed.id), error, 3)
        assert Job.objects.get(pk=crashed.id).state == ("failed" if number == 2 else ["ready", "scheduled"][number])
    for _ in range(10):
        Job.objects.filter(pk=lost.id).update(state="ready")
        assert lifecycle.lose(run(lost.id), error, 10)
    assert Job.objects.get(pk=lost.id).state == "failed"
    assert Job.objects.get(pk=lost.id).node_losses == 10


def test_rows_that_run_here_in_no_process_go_back_after_two_beats():
    job = run(tasks.effect.delay("a").id)
    board.node = job.node_id
    board.wipe()
    own = rescue.OwnJobs(board, os.getpid())
    assert own.hand_back_orphans() == 0
    assert own.hand_back_orphans() == 0
    assert own.hand_back_orphans() == 1
    assert Job.objects.get().state == "ready"


def test_a_row_that_runs_in_a_process_here_stays():
    job = run(tasks.effect.delay("a").id)
    board.node = job.node_id
    own = rescue.OwnJobs(board, os.getpid())
    with board.running(job.pk):
        for _ in range(5):
            assert own.hand_back_orphans() == 0
        assert own.settle_dead() == 0
    assert Job.objects.get().state == "running"


def test_a_second_database_that_is_away_keeps_nobody_from_being_rescued(second, side, settings):
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    job = run(tasks.effect.delay("a").id)
    rescue.first_beat(side, job.node_id)
    with connections[second].cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_job RENAME TO away")
        cursor.execute("ALTER TABLE jobs_node RENAME TO jobs_away")
    watch = rescue.Rescue(side)
    wait_for(lambda: watch.run_once()["nodes"], 5, "it is dead", step=0.05)
    job.refresh_from_db()
    assert (job.state, job.node_losses) == ("ready", 1)
    crashed, orphan = (run(tasks.effect.delay(key).id) for key in "bc")
    own = rescue.OwnJobs(board, os.getpid())
    board.node = crashed.node_id
    board.wipe()
    with subprocess.Popen(["true"]) as process:
        process.wait()
    board._write(5, process.pid, crashed.lease, crashed.pk)
    Job.objects.filter(pk=orphan.pk).update(node=crashed.node_id)
    assert own.settle_dead() == 1
    assert [own.hand_back_orphans() for _ in range(3)] == [0, 0, 1]
    assert not Job.objects.filter(state="running").exists()
    assert len(board.occupied()) == 1, "perhaps its job is in the other database"


def test_a_rescuer_that_cannot_write_calls_nobody_dead(side, settings):
    """A server that lost its standby, or has no room left: everybody can read, and no beat is written."""
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    own, other = (Node.objects.create(hostname="h", pid=pid) for pid in (1, 2))
    for node in (own, other):
        rescue.first_beat(side, node.pk)
    watch = rescue.Rescue(side, lambda: own.pk)
    for _ in range(20):
        assert not watch.run_once()["nodes"]
        time.sleep(0.05)
    began = time.monotonic()
    while not watch.run_once()["nodes"]:
        rescue.beat(side, own.pk)
        time.sleep(0.05)
        assert time.monotonic() - began < 5
    assert time.monotonic() - began >= 0.3, "the other one gets the full time again"


def test_a_node_that_beats_again_while_another_is_buried_lives(side, settings, monkeypatch):
    """The first burial waited for as long as nobody could write."""
    settings.JOBS = {**settings.JOBS, "HEARTBEAT": 0.05, "DEAD_AFTER": 0.3}
    nodes = [Node.objects.create(hostname="h", pid=pid) for pid in (1, 2)]
    for node in nodes:
        rescue.first_beat(side, node.pk)
    bury = rescue.bury

    def bury_at_last(node_id):
        for node in nodes:
            rescue.beat(side, node.pk)
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


# Prune


def test_prune_deletes_what_ended_long_ago_in_batches(side, settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 10, "RETENTION": 100.0, "RETENTION_FAILED": 1000.0}
    tasks.noop.delay_many([(n,) for n in range(45)])
    keys = list(Job.objects.values_list("pk", flat=True))
    Job.objects.update(created_at=ago(500))
    Job.objects.filter(pk__in=keys[:25]).update(state="succeeded", finished_at=ago(200))
    Job.objects.filter(pk__in=keys[25:30]).update(state="succeeded", finished_at=ago(50))
    Job.objects.filter(pk__in=keys[30:40]).update(state="failed", finished_at=ago(200), error={"type": "E"})
    prune = Prune(side)
    assert prune.count()["jobs"] == 25
    assert prune.run_once()["jobs"] == 25
    assert Job.objects.filter(pk__in=keys[25:]).count() == 20
    assert prune.run_once().get("jobs", 0) == 0


def test_prune_keeps_what_has_no_retention(side, settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": None, "RETENTION_FAILED": None}
    tasks.noop.delay()
    Job.objects.update(created_at=ago(10**8), state="succeeded", finished_at=ago(10**8))
    Prune(side).run_once()
    assert Job.objects.count() == 1


def test_an_idle_tick_costs_a_fixed_number_of_statements(published, side):
    """None per job: the same with 3 and with 300 jobs that wait or ended."""
    from django.test.utils import CaptureQueriesContext

    counts = []
    for size in (3, 300):
        tasks.noop.delay_many([(n,) for n in range(size)], countdown=3600)
        relay, watch = Relay(), rescue.Rescue(side)
        relay.run_once()
        watch.run_once()
        with CaptureQueriesContext(connection) as queries:
            relay.run_once()
            watch.run_once()
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert counts[0] <= 6


def test_the_current_app_is_what_the_relay_publishes_with():
    assert Relay().app is current_app._get_current_object()
