"""What ended long ago is deleted: in batches, within a budget, by one worker, and never what others replay."""

from __future__ import annotations

import datetime
import math
import os
import threading
import time

import pytest
from django.db import OperationalError, connection, connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.conf import conf
from jobs.contrib.pruning import prune, worker
from jobs.contrib.pruning.prune import Prune
from jobs.idempotency import markers
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Marker, Node
from jobs.worker import supervisor
from tests import tasks
from tests.helpers.concurrency import Elsewhere, open_transaction
from tests.helpers.harness import deliver
from tests.helpers.plans import ROWS, assert_indexed, make_history
from tests.helpers.rows import make, make_node
from tests.helpers.servers import fair, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86400.0


@pytest.fixture(autouse=True)
def _kept(settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "BATCH": 10, "RETENTION": DAY, "RETENTION_FAILED": 10 * DAY}
    monkeypatch.setattr(prune, "OLD_BATCHES", 1)


def many(number: int, state: str = "succeeded", age: float = 2 * DAY, **more) -> list[Job]:
    jobs = [make(state, age=age + n, **more) for n in range(2)]
    fields = {field.attname: getattr(jobs[0], field.attname) for field in Job._meta.concrete_fields}
    del fields["id"]
    at = jobs[0].finished_at
    rows = [Job(**{**fields, "finished_at": at - timezone.timedelta(seconds=n)}) for n in range(2, number)]
    return [*jobs, *Job.objects.bulk_create(rows)]


def keep(jobs: list[Job]) -> None:
    Marker.objects.bulk_create(Marker(key=str(job.pk), kind="task", job=job.pk) for job in jobs)


def reads(watch: Prune) -> int:
    """How many times it reads the next jobs."""
    with CaptureQueriesContext(connection) as queries:
        watch.run_once()
    return sum('AS "place"' in query["sql"].replace("`", '"') for query in queries)


def test_each_state_goes_after_its_retention():
    kept = {*many(5, age=0.0), *many(5, "failed"), make("cancelled"), make("ready", age=30 * DAY)}
    gone = [*many(25), *many(5, "failed", age=11 * DAY), make("cancelled", age=2 * DAY)]
    watch = Prune()
    assert watch.run_once()["jobs"] == len(gone)
    assert set(Job.objects.all()) == kept
    assert watch.run_once()["jobs"] == 0


def test_what_has_no_retention_stays(settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": None}
    make("succeeded", age=400 * DAY)
    make("failed", age=400 * DAY)
    assert Prune().run_once()["jobs"] == 1
    settings.JOBS = {**settings.JOBS, "RETENTION_FAILED": None}
    make("failed", age=400 * DAY)
    assert Prune().run_once()["jobs"] == 0
    assert Job.objects.count() == 2


@pytest.mark.database
def test_what_is_kept_for_a_marker_is_passed_over_once_in_a_full_walk(monkeypatch):
    kept = many(100)
    keep(kept)
    gone = many(5, age=3 * DAY)
    watch = Prune()
    assert watch.run_once()["jobs"] == 5
    assert Job.objects.count() == 100
    assert reads(watch) == 1, "it is at the end, and looks only for what grew old meanwhile"
    make("succeeded", age=1.5 * DAY)
    assert watch.run_once()["jobs"] == 1
    Marker.objects.filter(job=kept[7].pk).delete()
    assert watch.run_once()["jobs"] == 0
    monkeypatch.setattr(prune, "FULL_WALK", 0.0)
    watch.run_once()
    assert watch.run_once()["jobs"] == 1
    assert not Job.objects.filter(pk__in=[kept[7].pk, *(job.pk for job in gone)]).exists()


@pytest.mark.database
@pytest.mark.parametrize("clock", ["of the database", "of Python", "a whole second"])
def test_jobs_that_ended_at_one_moment_are_walked_one_by_one(clock):
    """SQLite compares texts, and its own clock writes ``14.000`` where Django writes ``14``."""
    jobs = many(45)
    keep(jobs[::2])
    at = timezone.now() - timezone.timedelta(days=2)
    at = {"of the database": Now() - timezone.timedelta(days=2), "of Python": at}.get(clock, at.replace(microsecond=0))
    Job.objects.update(finished_at=at)
    watch = Prune()
    assert watch.run_once()["jobs"] == 22
    assert reads(watch) == 1
    assert set(Job.objects.all()) == set(jobs[::2])


def test_it_stops_within_its_budget_and_goes_on_there(monkeypatch):
    keep(many(100))
    make("succeeded", age=1.5 * DAY)
    walk = prune.walk

    def slowly(*args):
        time.sleep(0.02)
        return walk(*args)

    monkeypatch.setattr(prune, "walk", slowly)
    watch, rounds = Prune(), 0
    while Job.objects.count() == 101:
        began = fair()
        watch.run_once(budget=0.1)
        assert fair() - began < 0.5
        rounds += 1
        assert rounds < 20
    assert rounds > 1


def test_a_round_that_ended_by_its_budget_is_followed_by_the_next_one_at_once(settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "PRUNE_INTERVAL": 3600.0}
    monkeypatch.setattr(worker, "BUDGET", 0.001)
    monkeypatch.setattr(worker, "AGAIN", 0.01)
    monkeypatch.setattr(worker_state, "node", make_node().pk)
    many(100)
    process = supervisor.Supervisor(os.getpid(), {"pool": "prefork"}, -1, -1)
    process._admitted.set()
    thread = threading.Thread(target=process._extension, args=[worker.run])
    thread.start()
    try:
        wait_for(lambda: not Job.objects.exists(), 20, "all are pruned")
    finally:
        process._stopping.set()
        thread.join()


def test_it_says_whether_a_round_was_not_enough():
    many(25)
    watch = Prune()
    watch.run_once(budget=0.0)
    assert watch.is_behind
    watch.run_once()
    assert not watch.is_behind
    assert not Job.objects.exists()


def test_markers_take_no_more_than_half_of_the_time(monkeypatch):
    make("succeeded", age=2 * DAY)
    monkeypatch.setattr(prune, "_delete_markers", lambda *args: (time.sleep(0.01), 1)[1])
    assert Prune().run_once(budget=0.1)["jobs"] == 1


@pytest.mark.database
def test_prune_does_not_wait_for_a_body_that_takes_a_marker_over():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    assert markers.take("k", "once", "default", None)
    Marker.objects.update(expires_at=transitions.now_plus(-1))
    with open_transaction(lambda: markers.take("k", "once", "default", None)):
        pruned = Elsewhere(lambda: Prune().run_once()["markers"])
        assert pruned.result(5) == 0
    assert Marker.objects.count() == 1


def test_the_oldest_worker_prunes():
    many(5)
    old = make_node(started_at=timezone.now() - timezone.timedelta(hours=1))
    young = make_node()
    assert Prune(lambda: young.pk).run_once(budget=2.0)["jobs"] == 0
    assert Prune(lambda: old.pk).run_once(budget=2.0)["jobs"] == 5


def test_a_replayed_job_stays():
    """Race: it is replayed after it was found."""
    [job] = many(2)[:1]
    Job.objects.filter(pk=job.pk).update(state="ready", finished_at=None)
    assert prune.delete_old([job.pk], "default") == 0
    assert Job.objects.filter(pk=job.pk).exists()


def test_what_goes_with_it():
    make("succeeded", age=2 * DAY)
    kept = make("succeeded")
    expired = make("succeeded", age=2 * DAY)
    Marker.objects.create(key="old", kind="task", job=expired.pk, expires_at=timezone.now())
    make_node(dead_at=timezone.now() - timezone.timedelta(days=8))
    node = make_node(dead_at=timezone.now() - timezone.timedelta(days=6))
    # Extensions say what they deleted as well: nothing.
    done = {what: number for what, number in Prune().run_once().items() if number}
    assert done == {"jobs": 2, "markers": 1, "nodes": 1}
    assert (Job.objects.get(), Node.objects.get(), Marker.objects.count()) == (kept, node, 0)


def test_a_node_is_known_as_long_as_jobs_of_any_database_name_it(second, settings):
    """Only the first database tells the others who is dead."""
    # The tests' second database goes by another name, with which Django refuses the subqueries about events.
    if hasattr(conf(), "RETENTION_EVENTS"):
        settings.JOBS = {**settings.JOBS, "RETENTION_EVENTS": None}
    gone = make_node(dead_at=timezone.now() - timezone.timedelta(days=8))
    job = make("running", node=gone)
    Job.objects.using(second).bulk_create([job])
    Job.objects.all().delete()
    assert Prune().run_once()["nodes"] == 0
    Job.objects.using(second).update(state="ready")
    with connections[second].cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_job RENAME TO away")
    assert Prune().run_once()["nodes"] == 0, "that database is away, and nobody knows whom its jobs name"
    with connections[second].cursor() as cursor:
        cursor.execute("ALTER TABLE away RENAME TO jobs_job")
    assert Prune().run_once()["nodes"] == 1


@pytest.mark.database
@pytest.mark.timeout(20)
def test_rows_that_another_session_has_locked_hold_up_no_other():
    if connection.vendor != "postgresql":
        pytest.skip(
            "SQLite has one writer at a time, and a DELETE of MariaDB that reads a small table waits for each row"
        )
    jobs = many(9)
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            some = ", ".join(f"'{job.pk}'" for job in jobs[:5])
            cursor.execute(f"SELECT 1 FROM jobs_job WHERE id IN ({some}) FOR UPDATE")
        assert Prune().run_once()["jobs"] == 4
        # The server lets go of what a closed connection had locked only when it notices.
        other.rollback()
    finally:
        other.close()
    assert Prune().run_once()["jobs"] == 5


@pytest.mark.core
@pytest.mark.database
def test_a_hundred_thousand_go_with_a_few_statements_for_each_batch(settings, monkeypatch):
    monkeypatch.undo()
    settings.JOBS = {**settings.JOBS, "BATCH": 500}
    make_history()
    Marker.objects.all().delete()
    # Where history goes by the day, this makes the days.
    Prune().run_once(budget=0.0)
    before = Job.objects.count()
    with CaptureQueriesContext(connection) as queries:
        assert (gone := Prune().run_once()["jobs"]) > ROWS * 0.9
    assert Job.objects.count() == before - gone
    with CaptureQueriesContext(connection) as nothing_to_do:
        assert Prune().run_once()["jobs"] == 0
    size = 5_000 if connection.vendor == "postgresql" else 500
    # With what begins and ends their transactions, and what extensions keep of a job.
    assert len(queries) - len(nothing_to_do) <= 10 * math.ceil(gone / size)


def test_a_batch_that_could_not_be_deleted_is_tried_again(monkeypatch, settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 1}
    make("succeeded", finished_at=timezone.now() - datetime.timedelta(days=1))

    def fail(*given):
        raise OperationalError("deadlock")

    own = Prune()
    with monkeypatch.context() as patch:
        patch.setattr(prune, "delete_old", fail)
        assert own.run_once()["jobs"] == 0
    assert own.run_once()["jobs"] == 1


def test_markers_and_the_jobs_that_they_replay_are_pruned_together(node, settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 10.0}
    kept, gone = tasks.welcomes.delay(5), tasks.effect.delay("a")
    deliver(kept)
    deliver(gone)
    past = transitions.now_plus(-60)
    Job.objects.update(started_at=past, finished_at=past)
    Prune().run_once()
    assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [kept.id]
    Marker.objects.update(expires_at=past)
    Prune().run_once()
    assert not Marker.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.core
def test_its_queries_use_an_index(settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 3600.0}
    make_history()
    old = Job.objects.filter(state="succeeded").order_by("pk")[ROWS // 20]
    assert_indexed("prune", lambda: list(prune.walk("default", None, 500)))
    assert_indexed("prune, later", lambda: list(prune.walk("default", (str(old.finished_at), old.pk), 500)))
    assert_indexed("delete", lambda: prune.delete_old([old.pk], "default"))
