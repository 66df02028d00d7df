"""Jobs that wait for something else than a time are woken one by one, by an index, and as their transaction commits."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.models import TextField, Value
from django.db.models.functions import Cast, Concat

from jobs.contrib.waking.store import wake_sql
from jobs.contrib.waking.waking import wake
from jobs.lifecycle import transitions
from jobs.models import Job
from tests import tasks
from tests.helpers.plans import analyze, explained_generically, make_history
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def test_the_first_that_waits_for_it_is_woken():
    first, second = [make("scheduled", age, run_at=transitions.NEVER, waits_for="signal:a") for age in (2.0, 1.0)]
    other = make("scheduled", run_at=transitions.NEVER, waits_for="signal:b")
    assert wake("signal:a", "default")
    assert [Job.objects.get(pk=job.pk).state for job in (first, second, other)] == ["ready", "scheduled", "scheduled"]
    assert not wake("signal:c", "default")


@pytest.mark.parametrize("has_statistics", [True, False])
def test_it_is_found_by_its_index_among_ten_thousand(has_statistics):
    if connection.vendor != "postgresql":
        pytest.skip("elsewhere it is a query of Django")
    make_history()
    rows = (Job(task="tests.tasks.noop", state="scheduled", run_at=transitions.NEVER) for _ in range(10_000))
    Job.objects.bulk_create(rows)
    parked = Job.objects.filter(state="scheduled", run_at=transitions.NEVER)
    parked.update(waits_for=Concat(Value("lock:"), Cast("pk", TextField())))
    if has_statistics:
        analyze("jobs_job")
    for tells in (False, True):
        columns = transitions.waiting(None)
        given = {**columns, "what": "k", "channel": "c", "told": "t"}
        text = explained_generically(wake_sql(columns, True, tells), given)
        assert "jobs_job_awaiting" in text, text
        assert "Seq Scan on jobs_job" not in text, text


@pytest.fixture
def at_commit():
    """How jobs were committed that have just become ready."""
    if connection.vendor != "postgresql":
        pytest.skip("there is no such setting")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE seen_at_commit (number serial, value text)")
        cursor.execute(
            "CREATE FUNCTION see_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO seen_at_commit (value) VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER see_at_commit AFTER UPDATE ON jobs_job DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW WHEN (NEW.state = 'ready') EXECUTE FUNCTION see_at_commit()"
        )

    def seen():
        with connection.cursor() as cursor:
            cursor.execute("SELECT value FROM seen_at_commit ORDER BY number")
            return [value for [value] in cursor.fetchall()]

    yield seen
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION see_at_commit CASCADE")
        cursor.execute("DROP TABLE seen_at_commit")


def test_what_wakes_a_waiting_job_need_not_wait_for_the_disk_and_relaxes_no_transaction(at_commit):
    for _ in range(2):
        job = Job.objects.get(pk=tasks.noop.delay().id)
        Job.objects.filter(pk=job.pk).update(state="scheduled", run_at=transitions.PARKED, waits_for="signal:a")
    assert wake("signal:a", "default")
    with transaction.atomic():
        assert wake("signal:a", "default")
    assert at_commit() == ["off", "on"]
