"""At most one waiting job per key; nobody waits for long, and nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from celery import shared_task
from django.db import IntegrityError, connection, transaction

from jobs import UniqueBusy, UniqueTaken
from jobs.conf import conf, syncpoints
from jobs.lifecycle import transitions
from jobs.maintenance import rescue
from jobs.models import Job
from tests import tasks
from tests.conftest import not_installed
from tests.faults.database import use
from tests.helpers import driver
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.harness import claim, database_url, deliver, effects
from tests.helpers.servers import Missing, PgBouncer, wait_for
from tests.models import Effect, Order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.database
def test_the_second_call_returns_the_first_ones_job(node):
    one, two, other = tasks.summary.delay("mon"), tasks.summary.delay("mon"), tasks.summary.delay("tue")
    assert (one.id == two.id, one.existing, two.existing, other.existing) == (True, False, True, False)
    assert Job.objects.count() == 2
    assert deliver(one)[0] == "SUCCESS"
    again = tasks.summary.delay("mon")
    assert not again.existing
    assert again.id != one.id


@pytest.mark.database
def test_future_jobs_count_and_ended_ones_do_not(node):
    waiting = tasks.summary.apply_async(("mon",), countdown=60)
    assert tasks.summary.delay("mon").id == waiting.id
    transitions.cancel(uuid.UUID(waiting.id), "default")
    assert not tasks.summary.delay("mon").existing


@pytest.mark.database
def test_until_started_a_running_job_lets_the_next_one_wait(node):
    one = tasks.summary.delay("mon")
    claim(one.id)
    assert not tasks.summary.delay("mon").existing
    assert tasks.summary.delay("mon").existing


@pytest.mark.database
def test_until_finished_it_does_not(node):
    one = tasks.summary_to_the_end.delay("mon")
    claim(one.id)
    assert tasks.summary_to_the_end.delay("mon").id == one.id
    job = Job.objects.get()
    assert transitions.hand_back(job, 0)
    deliver(one)
    assert not tasks.summary_to_the_end.delay("mon").existing


@pytest.mark.database
def test_unique_for_is_over(node):
    one = tasks.summary_for_a_while.delay("mon")
    assert tasks.summary_for_a_while.delay("mon").existing
    Job.objects.update(unique_expires_at=transitions.now_plus(-1))
    two = tasks.summary_for_a_while.delay("mon")
    assert not two.existing
    # The first one still waits, and runs.
    assert deliver(one)[0] == deliver(two)[0] == "SUCCESS"


@pytest.mark.database
def test_many_at_once(node):
    first = tasks.summary.delay("b")
    results = tasks.summary.delay_many([("a",), ("b",), ("a",), {"day": "c"}])
    assert [result.existing for result in results] == [False, True, True, False]
    assert results[0].id == results[2].id
    assert results[1].id == first.id
    assert Job.objects.count() == 3


@pytest.mark.database
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls-back"])
def test_a_call_waits_for_the_other_transaction(node, settings, commits):
    settings.JOBS = {**settings.JOBS, "UNIQUE_WAIT": 10.0}
    first = []
    with open_transaction(lambda: first.append(tasks.summary.delay("mon")), commits):
        second = Elsewhere(lambda: tasks.summary.delay("mon"))
        wait_for(somebody_waits, 10, "the second call waits")
        assert not second.outcome
    result = second.result()
    assert (result.existing, result.id == first[0].id) == (commits, commits)
    assert str(Job.objects.get().pk) == result.id


@pytest.mark.database
def test_a_call_does_not_wait_for_ever(node, settings):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    settings.JOBS = {**settings.JOBS, "UNIQUE_WAIT": 0.3}
    with open_transaction(lambda: tasks.summary.delay("mon")), transaction.atomic():
        Effect.objects.create(key="before")
        with pytest.raises(UniqueBusy, match="'mon'.*end of the transaction"):
            tasks.summary.delay("mon")
        # The caller's transaction lives, and its own bounds are what they were.
        Effect.objects.create(key="after")
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)
    assert effects() == {"before": 1, "after": 1}
    assert Job.objects.count() == 1


@pytest.mark.database
@pytest.mark.parametrize("first", ["key", "row"])
def test_keys_and_rows_in_opposite_order(node, first):
    """Nobody waits longer than the bound and a deadlock's detection; who may not goes back as a whole."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    Order.objects.create(key="row", job=uuid.uuid4())

    def take(what):
        if what == "row":
            Order.objects.select_for_update().get(key="row")
        else:
            tasks.summary.delay("mon" if what == "key" else what)

    def both(order):
        began = time.monotonic()
        try:
            with transaction.atomic():
                take(order[0])
                Effect.objects.create(key=order[0])
                meeting.wait(10)
                if order[0] == other:
                    # If both gave up at the same moment, none would have made way for the other.
                    wait_for(lambda: somebody_waits(seconds=0.4), 10, "the other one has begun to wait")
                take(order[1])
            return time.monotonic() - began, True
        except Exception as exc:
            return time.monotonic() - began, exc

    meeting = threading.Barrier(2)
    other = "another" if first == "key" else "row"
    left, right = Elsewhere(lambda: both(("key", other))), Elsewhere(lambda: both((other, "key")))
    outcomes = [left.result(), right.result()]
    assert all(seconds < conf().UNIQUE_WAIT + 4 for seconds, _ in outcomes), outcomes
    committed = sum(done is True for _, done in outcomes)
    assert committed >= 1, outcomes
    assert Effect.objects.count() == committed
    assert Job.objects.filter(unique_key="mon").count() == 1


# Back to wait, and the key is taken


@pytest.mark.database
def test_a_retry_whose_key_is_taken_says_so(node):
    one = tasks.summary.delay("mon", how="retries")
    results = []
    syncpoints.arm(lambda point: results.append(tasks.summary.delay("mon")) if point == "after_claim" else None)
    deliver(one)
    syncpoints.arm(None)
    job = Job.objects.get(pk=one.id)
    assert (job.state, job.error["type"]) == ("failed", "UniqueTaken")
    assert results[0].id in job.error["message"]
    assert deliver(results[0])[0] == "SUCCESS"


@pytest.mark.database
def test_rescue_goes_on_when_a_key_is_taken(node):
    one, plain = tasks.summary.delay("mon"), tasks.effect.delay("a")
    for result in (one, plain):
        assert claim(result.id)
    holder = tasks.summary.delay("mon")
    rescue.bury(node.pk)
    assert rescue.rescue_all("default") == 2
    assert Job.objects.get(pk=plain.id).state == "ready"
    job = Job.objects.get(pk=one.id)
    assert (job.state, job.error["type"], job.node_losses) == ("failed", "UniqueTaken", 1)
    assert holder.id in job.error["message"]
    assert [error["type"] for error in job.errors] == ["NodeLost", "UniqueTaken"]


@pytest.mark.database
def test_rescue_does_not_wait_for_a_caller(node, settings):
    """Somebody's transaction has the key, and does not end."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    settings.JOBS = {**settings.JOBS, "UNIQUE_WAIT": 0.3}
    one, plain = tasks.summary.delay("mon"), tasks.effect.delay("a")
    for result in (one, plain):
        assert claim(result.id)
    with open_transaction(lambda: tasks.summary.delay("mon"), commits=False):
        rescue.bury(node.pk)
        assert rescue.rescue_all("default") == 2
        assert set(Job.objects.values_list("state", flat=True)) == {"ready"}


def test_the_key_of_another_task_is_an_error_and_no_job(node):
    tasks.summary.delay("mon")
    with pytest.raises(ValueError, match="all tasks share the keys"):
        tasks.summary_to_the_end.delay("mon")
    assert Job.objects.count() == 1


def test_an_id_that_was_asked_for_and_is_not_taken_is_an_error(node):
    tasks.summary.delay("mon")
    with pytest.raises(UniqueTaken, match="leave task_id= out"):
        tasks.summary.apply_async(("mon",), task_id=str(uuid.uuid4()))
    assert Job.objects.count() == 1


@pytest.mark.database
def test_a_retry_is_not_forgotten_when_somebody_may_take_the_key(node, settings):
    """The other transaction is open: two may wait then, and the retry keeps its time."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    settings.JOBS = {**settings.JOBS, "UNIQUE_WAIT": 0.3}
    one = tasks.summary.delay("mon", how="retries")
    job = claim(one.id)
    with open_transaction(lambda: tasks.summary.delay("mon")):
        error = transitions.error_entry("ValueError", "no", attempt=1)
        assert transitions.retry(job, transitions.now_plus(600), error, {})
    job = Job.objects.get(pk=one.id)
    assert (job.state, job.retries, job.unique_key) == ("scheduled", 1, None)
    assert Job.objects.filter(unique_key="mon").count() == 1


@pytest.mark.database
def test_a_call_that_finds_a_job_keeps_no_worker_from_it(node):
    """The caller's transaction may last. MariaDB's INSERT IGNORE would lock the row that it meets until its end."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer")
    one = tasks.summary.delay("mon")
    with open_transaction(lambda: tasks.summary.delay("mon")):
        claimed = Elsewhere(lambda: claim(one.id))
        assert claimed.result(5).state == "running"


@pytest.mark.database
def test_expired_keys_are_freed_outside_of_the_callers_transaction(node):
    """Else nobody could claim the job that had the key, as long as the caller's transaction lasts."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    one = tasks.summary_for_a_while.delay("mon")
    Job.objects.update(unique_expires_at=transitions.now_plus(-1))
    with open_transaction(lambda: tasks.summary_for_a_while.delay("mon")):
        claimed = Elsewhere(lambda: claim(one.id))
        assert claimed.result(5).state == "running"
    assert Job.objects.filter(unique_key="mon").count() == 1


@pytest.mark.database
def test_behind_a_pooler_other_clients_keep_their_bounds(node):
    """The connection that freed an expired key is somebody else's the next moment."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    try:
        pooler = PgBouncer(database_url())
    except Missing as exc:
        not_installed(str(exc))
    try:
        with use(pooler.url):
            tasks.summary_for_a_while.delay("mon")
            Job.objects.update(unique_expires_at=transitions.now_plus(-1))
            assert not tasks.summary_for_a_while.delay("mon").existing
            with connection.cursor() as cursor:
                cursor.execute("SHOW lock_timeout")
                assert cursor.fetchone() == ("0",)
            connection.close()
            clients = [driver.psycopg.connect(pooler.url) for _ in range(6)]
            for client in clients:
                # Each in a transaction, so that each has a server process of its own.
                assert driver.ask(client, "SHOW lock_timeout") == ("0",)
            for client in clients:
                client.close()
    finally:
        pooler.stop()


def test_unique_for_is_over_for_a_retry_too(node):
    one = tasks.summary_for_a_while.delay("mon")
    job = claim(one.id)
    Job.objects.update(unique_expires_at=transitions.now_plus(-1))
    tasks.summary_for_a_while.delay("mon")
    job.refresh_from_db()
    assert transitions.retry(job, None, transitions.error_entry("ValueError", "no", attempt=1), {})
    assert Job.objects.get(pk=one.id).state == "ready"


@pytest.mark.database
def test_a_job_that_has_expired_is_nobodys_work(node):
    """No worker was there to cancel it. It would be cancelled by the next one, and with it the second call."""
    one = tasks.summary.apply_async(("mon",), expires=60)
    Job.objects.update(expires_at=transitions.now_plus(-1))
    two = tasks.summary.apply_async(("mon",), expires=60)
    assert (two.existing, one.id != two.id) == (False, True)
    assert transitions.expire("default", 10) == 1
    assert deliver(two)[0] == "SUCCESS"


@shared_task(bind=True, unique="page:{number}")
def turns_the_page(self, number):
    if number == 1:
        raise self.retry(args=(2,), countdown=60)


@pytest.mark.database
def test_a_retry_with_other_arguments_has_their_key(node):
    one = turns_the_page.delay(1)
    deliver(one)
    assert turns_the_page.delay(2).id == one.id
    again = turns_the_page.delay(1)
    assert not again.existing
    deliver(again)
    job = Job.objects.get(pk=again.id)
    assert (job.state, job.error["type"]) == ("failed", "UniqueTaken"), "the first one does the second's work"


def test_an_id_that_is_taken_is_an_error(node):
    one = tasks.noop.delay()
    with pytest.raises(IntegrityError):
        tasks.summary.apply_async(("mon",), task_id=one.id)
