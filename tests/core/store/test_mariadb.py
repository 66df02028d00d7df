"""What MariaDB needs beside Django's migrations: whole indexes, computed columns, exact keys, a clock that says UTC."""

import pytest
from django.db import IntegrityError, connection, transaction

from jobs import store
from jobs.models import Job, Marker, Node
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
    make("running", limit_key="a", limit_place=0)
    make("ready", limit_key="a")
    with pytest.raises(IntegrityError, match="jobs_job_place"), transaction.atomic():
        make("running", limit_key="a", limit_place=0)


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
    with connection.schema_editor() as editor:
        store.of("default").complete_schema(editor, [Job])


def test_the_claim_reads_by_its_index():
    Job.objects.bulk_create(Job(task="t", queue="celery") for _ in range(2000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE jobs_job")
        cursor.fetchall()
    node = Node.objects.create(hostname="here", pid=1)
    ready = store.of("default").ready("celery", node.pk)
    plan = ready.values_list("pk")[:10].explain()
    assert "jobs_job_ready" in plan
    assert "filesort" not in plan
