"""In which queues a job waits: one question for all of them."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import store
from jobs.models import Job, Pause
from jobs.models.fields import uuid7
from jobs.store import base
from tests import tasks
from tests.helpers import driver
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUES = [f"queue-{number:03}" for number in range(200)]


def test_the_queues_in_which_a_job_waits():
    for queue in ("queue-003", "queue-050", "queue-050", "queue-199", "others", "it's 100%"):
        make(queue=queue)
    make("scheduled", queue="queue-001"), make("running", queue="queue-002"), make(queue="queue-100")
    Job.objects.filter(pk=make(queue="queue-004").pk).update(held=True)
    Pause.objects.create(queue="queue-100")
    at = store.of("default")
    assert sorted(at.with_ready([*QUEUES, "it's 100%"])) == ["it's 100%", "queue-003", "queue-050", "queue-199"]
    assert at.with_ready(QUEUES[4:50]) == []
    assert at.has_ready(QUEUES)
    assert at.has_ready(["queue-004", "others"])
    assert not at.has_ready(["queue-001", "queue-002", "queue-004", "queue-100"])
    assert not at.has_ready([])


@pytest.mark.parametrize("most", [1, 7, 200])
def test_so_many_queues_that_no_statement_takes_them(monkeypatch, most):
    monkeypatch.setattr(base, "COLUMNS", most)
    make(queue="queue-003"), make(queue="queue-199")
    assert sorted(store.of("default").with_ready(QUEUES)) == ["queue-003", "queue-199"]


def test_a_look_at_many_queues_reads_a_page_or_two_of_each():
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL tells how much it reads")
    driver.prepares()
    tasks.noop.delay_many([(number,) for number in range(5000)], queue="queue-077")
    Job.objects.bulk_create(Job(id=uuid7(), task="a", queue=queue) for queue in QUEUES[::10] for _ in range(50))
    asked, at = [], store.of("default")
    with CaptureQueriesContext(connection) as queries:
        assert at.has_ready(QUEUES)
        assert not at.has_ready(QUEUES[1:10], is_short=True)
    asked += [query["sql"] for query in queries]
    with pytest.MonkeyPatch.context() as patch:
        fetch = driver.session_class().fetch
        patch.setattr(driver.session_class(), "fetch", lambda *args: (asked.append(args[1:]), fetch(*args))[1])
        assert len(at.with_ready(QUEUES)) == 21
    assert len(asked) == 3
    for each in asked:
        sql, values = (each.replace("%", "%%"), []) if isinstance(each, str) else each
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", values)
            plan = cursor.fetchone()[0][0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 5 * len(QUEUES)
        assert sql.count("jobs_job") == 1, "to plan hundreds of them takes longer than the look"
