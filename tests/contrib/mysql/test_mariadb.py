"""What MariaDB needs beside Django's migrations: whole indexes, computed columns, exact keys, a clock that says UTC."""

import datetime
import time
import uuid
from contextlib import suppress
from functools import partial
from threading import Barrier, BrokenBarrierError

import pytest
from celery import shared_task
from django.apps import apps
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

import jobs
from jobs import extensions, store
from jobs.contrib.limits import claims as limited
from jobs.contrib.mysql import store as mysql
from jobs.idempotency import markers
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import clock, rescue
from jobs.models import Job, Marker, Node, RateLimiter
from jobs.store import databases
from jobs.store.base import Claim
from tests import tasks
from tests.helpers.concurrency import Elsewhere, open_transaction
from tests.helpers.harness import deliver, run_ready
from tests.helpers.plans import analyze, asked_by, numbers
from tests.helpers.rows import make

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.core,
    pytest.mark.skipif(connection.vendor != "mysql", reason="MariaDB only"),
]


def test_two_jobs_of_a_key_cannot_wait_and_two_that_ended_may_have_it():
    make("ready", unique_key="k")
    with pytest.raises(IntegrityError, match="jobs_job_unique"), transaction.atomic():
        make("scheduled", unique_key="k")
    Job.objects.update(state="succeeded", finished_at="2026-01-01T00:00Z")
    make("succeeded", unique_key="k")
    make("ready", unique_key="k")


def test_two_runs_of_a_limit_cannot_have_the_same_place():
    make("running", limit_key="a", limit_slot=0)
    make("ready", limit_key="a")
    with pytest.raises(IntegrityError, match="jobs_job_limit_slot"), transaction.atomic():
        make("running", limit_key="a", limit_slot=0)


def test_keys_are_compared_letter_by_letter():
    for key in ("once:a", "once:A", "once:a ", "once:\u00e4", "once:\u043a\u043b\u044e\u0447"):
        assert store.of("default").insert_marker(key, "once", "", None, None, 1.0)
    assert Marker.objects.count() == 5


def test_the_clock_of_the_session_says_utc():
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@time_zone, TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())")
        assert cursor.fetchone() == ("+00:00", 0)


def test_each_partial_index_has_a_whole_one_in_its_place():
    with connection.cursor() as cursor:
        there = connection.introspection.get_constraints(cursor, "jobs_job")
    assert {index.name for index in Job._meta.indexes} <= there.keys()
    assert there["jobs_job_ready"]["columns"] == ["held", "state", "queue", "rank", "run_at", "id"]
    store.of("default").complete_schema([Job])


def test_what_is_asked_all_the_time_reads_few_rows_however_many_wait(monkeypatch):
    """50,000 jobs are ready, and as many are scheduled; a claim that sorted them would lock them all."""
    for state, at in (("ready", "run_at"), ("scheduled", "run_at + INTERVAL 1 HOUR")):
        make(state)
        columns = [f"`{field.column}`" for field in Job._meta.concrete_fields if field.column not in ("id", "run_at")]
        names = ", ".join(columns)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO jobs_job (id, run_at, {names}) SELECT UUID(), {at}, {names} "
                f"FROM jobs_job, {numbers(50_000)} WHERE state = %s",
                [state],
            )
    analyze("jobs_job")
    node, at = Node.objects.create(hostname="here", pid=1), store.of("default")
    monkeypatch.setattr(worker_state, "queues", ["celery"])
    hot = {
        "claim": lambda: at.claim(Claim("celery", node.pk, 10, 1)),
        "look": lambda: at.look(["celery"], extensions.merged("looks").values()),
        "poll": lambda: at.has_ready(["celery"]),
        "tick": clock.tick,
        "rescue": lambda: rescue.Rescue(databases.SideDatabase()).run_once(),
    }
    for query in hot.values():
        assert asked_by(query, few=500)


def test_nobody_is_warned_of_what_the_store_makes_up_for():
    models = apps.get_app_config(Job._meta.app_label).get_models()
    assert [message for model in models for message in model.check(databases=["default"])] == []


def test_a_name_is_locked_until_the_transaction_ends():
    at = store.of("default")
    with open_transaction(lambda: at.lock_names(["a", "b"])):
        with at.bounded(1):
            at.lock_names(["c"])
        with pytest.raises(OperationalError) as raised, at.bounded(1):
            at.lock_names(["b", "c"])
        assert databases.gave_up(raised.value)
    with at.bounded(1):
        at.lock_names(["b"])
        at.lock_names(["a", "b"])
    assert at.ask("SELECT count(*) FROM jobs_locked_name") == ((0,),)


def test_many_who_lock_the_same_names_do_not_end_each_other():
    at, inside, met = store.of("default"), [], []

    def lock():
        for _ in range(25):
            with transaction.atomic():
                at.lock_names(["b", "a"])
                inside.append(1)
                met.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    others = [Elsewhere(lock) for _ in range(4)]
    assert [other.result() for other in others] == [None] * 4
    assert set(met) == {1}


@pytest.fixture
def session():
    """Another session, in a transaction that locks something."""
    with databases.apart("default") as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM jobs_job FOR UPDATE")
        # Who asks twice in a tenth of a second gets the same answer.
        time.sleep(0.15)
        yield cursor


def number_of(cursor) -> int:
    cursor.execute("SELECT CONNECTION_ID()")
    return cursor.fetchone()[0]


def run_on(session: int, **values) -> Job:
    """A job that runs over this session of the server."""
    return make("running", lease=1, backend=session, started_at=timezone.now(), **values)


def test_the_session_of_a_dead_run_is_ended_and_its_locks_go(session):
    job = run_on(number_of(session))
    session.execute("SELECT id FROM jobs_job FOR UPDATE")
    assert store.of("default").end_sessions([(job.pk, 1), (uuid.uuid4(), 1)]) == ([job.pk], set())
    assert Job.objects.filter(pk=job.pk).update(lease=2) == 1
    with pytest.raises(OperationalError):
        session.execute("SELECT 1")


@pytest.mark.parametrize("how", ["another run has it", "another lease", "before the server began", "it is idle"])
def test_a_session_that_is_not_the_dead_runs_is_left_alone(session, how):
    job = run_on(number_of(session))
    if how == "another run has it":
        run_on(number_of(session))
    if how == "before the server began":
        Job.objects.update(started_at="2020-01-01T00:00Z")
    if how == "it is idle":
        session.execute("ROLLBACK")
        time.sleep(0.15)
    lease = 2 if how == "another lease" else 1
    assert store.of("default").end_sessions([(job.pk, lease)]) == ([], set())
    session.execute("SELECT 1")


def test_a_login_that_may_not_ask_who_is_in_a_transaction_ends_an_idle_session_too(session, monkeypatch):
    monkeypatch.setattr(mysql, "BUSY", f"SIGNAL SQLSTATE '42000' SET MYSQL_ERRNO = {mysql.NOT_ALLOWED}")
    job = run_on(number_of(session))
    session.execute("ROLLBACK")
    assert store.of("default").end_sessions([(job.pk, 1)]) == ([job.pk], set())


def test_a_wait_for_somebody_elses_row_is_bounded_and_the_bound_is_taken_back():
    job = make("ready")
    at, before = store.of("default"), store.of("default").ask("SELECT @@innodb_lock_wait_timeout")
    with open_transaction(lambda: list(Job.objects.select_for_update().filter(pk=job.pk))):
        began = time.monotonic()
        with pytest.raises(OperationalError) as raised, at.bounded(0.5):
            Job.objects.filter(pk=job.pk).update(rank=1)
        assert databases.gave_up(raised.value)
        assert time.monotonic() - began > 0.5
    assert at.ask("SELECT @@innodb_lock_wait_timeout") == before


def test_a_marker_waits_as_long_as_the_setting_says(settings):
    settings.JOBS = {**settings.JOBS, "MARKER_WAIT": 1.0}
    with open_transaction(lambda: markers.take("k", "once", "default", None)):
        began = time.monotonic()
        with pytest.raises(jobs.Busy), transaction.atomic(), jobs.once("k"):
            pass
        # InnoDB itself would wait for 50 s.
        assert time.monotonic() - began < 20


@shared_task(rate_limit="1/m")
def is_rated(key):
    pass


@pytest.mark.parametrize("is_new", [True, False])
def test_two_queues_share_the_rate_of_a_task(node, monkeypatch, is_new):
    if not is_new:
        RateLimiter.objects.create(key=is_rated.name, last_at=1, next_at=2)
    both, sort, found = Barrier(2), limited._sort, []

    def sort_together(*args, **options):
        sorted_ = sort(*args, **options)
        if sorted_.picked:
            # Both have read the limiter. If one claim begins again, it is alone.
            with suppress(BrokenBarrierError):
                both.wait(3)
        return sorted_

    monkeypatch.setattr(limited, "_sort", sort_together)
    for queue in ("q1", "q2"):
        is_rated.apply_async((queue,), queue=queue)
    claims = [Elsewhere(partial(claims_of, queue, found)) for queue in ("q1", "q2")]
    for each in claims:
        each.result()
    assert len(found) == 1


def claims_of(queue, found):
    found += limited.LimitedClaimer().claim("default", queue, worker_state.node, 1)


@shared_task(atomic=False)
def sets(what):
    with connection.cursor() as cursor:
        cursor.execute(f"SET {what}")


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("what", ["sql_select_limit = 0", "completion_type = RELEASE"])
def test_what_a_body_sets_in_its_session_keeps_no_job_from_being_claimed(what):
    """The process found nothing any more, or its claims were rolled back in silence."""
    deliver(sets.delay(what))
    result = tasks.noop.delay(1)
    run_ready()
    assert Job.objects.get(pk=result.id).state == "succeeded"


@shared_task
def reports_in_local_time():
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+05:00'")


@pytest.mark.usefixtures("node")
def test_a_time_zone_that_a_body_leaves_is_not_that_of_the_next_job():
    """Its times were five hours off, and what it was to do in a second, too."""
    deliver(reports_in_local_time.delay())
    result = tasks.noop.delay(1)
    deliver(result)
    job = Job.objects.get(pk=result.id)
    assert abs(job.finished_at - timezone.now()) < datetime.timedelta(minutes=1)
