"""What ``manage.py jobs status`` and ``nodes`` say, and what that costs."""

from __future__ import annotations

import datetime
import io
import json
import re
import time

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.contrib.adoption.identity import mark_of
from jobs.contrib.inspection import counts
from jobs.contrib.operator import problems, status
from jobs.contrib.pauses import pauses
from jobs.contrib.verify.verify import verify
from jobs.models import Instance, Job
from jobs.store.identity import check_all
from tests.helpers.commands import refused, run
from tests.helpers.plans import analyze, asked_by, numbers, plan, read_whole
from tests.helpers.rows import ERROR, let_heartbeat, make, make_node
from tests.helpers.terminal import OBEYED

pytestmark = pytest.mark.django_db(transaction=True)


def test_status_as_json_counts_by_state_and_queue():
    node = make_node()
    make_node(dead_at=timezone.now())
    make("scheduled", age=-60)
    make("scheduled", age=7)
    make("ready", age=30)
    make("ready", age=12, queue="mail")
    make("running", node=node)
    make("succeeded")
    make("failed")
    make("failed")
    found = json.loads(run("status", "--json"))
    assert list(found) == [
        "databases", "jobs", "capped", "estimated", "queues", "pauses", "nodes", "dead_nodes", "died",
        "oldest_ready_seconds", "due", "unknown_tasks", "fair", "limits", "schedules", "remarks",
    ]  # fmt: skip
    assert found["jobs"] == {"scheduled": 2, "ready": 2, "running": 1, "succeeded": 1, "failed": 2, "cancelled": 0}
    ages = [queue.pop("oldest_ready_seconds") for queue in found["queues"].values()]
    assert 30 <= ages[0] < 50
    assert 12 <= ages[1] < 30
    no_more = {"capped": False, "workers": 0, "paused": False, "held": 0, "parked": 0}
    assert found["queues"] == {
        "celery": {"scheduled": 2, "ready": 1, "running": 1, **no_more},
        "mail": {"scheduled": 0, "ready": 1, "running": 0, **no_more},
    }
    [alive] = found["nodes"]
    assert (alive["id"], alive["hostname"], alive["pid"]) == (str(node.pk), "web1", 4711)
    assert (alive["queues"], alive["running"]) == (["celery", "mail"], 1)
    assert 0 <= alive["age_seconds"] < 20
    assert found["dead_nodes"] == 1
    assert 30 <= found["oldest_ready_seconds"] < 50
    assert found["due"]["count"] == 1
    assert 7 <= found["due"]["lag_seconds"] < 30


def test_status_says_when_workers_refuse_the_database():
    make("ready")
    assert json.loads(run("status", "--json"))["databases"]["default"]["adopted"], "the first worker will mark it"
    check_all()
    assert "marked as another" not in run("status")
    Instance.objects.update(mark="production")
    found = json.loads(run("status", "--json"))["databases"]["default"]
    assert found == {"marked_as": "production", "is": mark_of("default"), "adopted": False}
    assert (
        f"the database 'default' is marked as another one, 'production', and it is {found['is']!r}: workers refuse it "
        "until `manage.py jobs adopt`"
    ) in run("status").splitlines()


def test_status_says_when_a_queue_stands_still():
    """That a worker is connected does not say that it consumes."""
    make("ready", queue="slow", age=300)
    make("ready", queue="mail", age=0)
    assert "no worker is alive, and the oldest ready job has waited 5.0 min" in run("status")
    let_heartbeat(make_node(queues=["other"]))
    assert "slow: the oldest ready job has waited 5.0 min, and no worker consumes its queue" in run("status")
    nodes = [make_node(queues=["slow", "mail"]) for _ in range(2)]
    for node in nodes:
        let_heartbeat(node)
    text = run("status")
    assert "slow: the oldest ready job has waited 5.0 min although 2 workers consume its queue, and none of" in text
    assert "mail: " not in text
    make("running", queue="slow", node=nodes[0])
    assert "slow: the oldest ready job has waited 5.0 min; 2 workers consume its queue (1 running)" in run("status")
    assert json.loads(run("status", "--json"))["queues"]["slow"]["workers"] == 2


@pytest.mark.django_db(transaction=True)
def test_status_tells_workers_that_beat_from_those_that_fell_silent():
    """Nobody is left to declare them dead when all of them died."""
    beating, silent = make_node(), make_node()
    make_node(dead_at=timezone.now())
    make_node(dead_at=timezone.now(), signed_off=True)
    make_node(dead_at=timezone.now() - datetime.timedelta(days=2))
    let_heartbeat(beating)
    let_heartbeat(silent, 60.0)
    found = json.loads(run("status", "--json"))
    seen = {node["id"]: node for node in found["nodes"]}
    assert (seen[str(beating.pk)]["alive"], seen[str(silent.pk)]["alive"]) == (True, False)
    assert 60 <= seen[str(silent.pk)]["beat_seconds"] < 80
    assert found["dead_nodes"] == 1, "one signed off, and one is of last week"
    assert "workers: 1 alive, 1 silent, 1 died" in run("status")


def test_status_says_what_is_overdue_and_what_no_worker_knows():
    make("scheduled", age=2)
    for _ in range(2):
        make("scheduled", age=-60, task="shop.mail", error={**ERROR, "type": "NotRegistered"})
    text = run("status")
    assert "shop.mail: 2 jobs wait for a worker that knows this task" in text
    assert "no worker has made" not in text, "it may take a moment"
    make("scheduled", age=300)
    assert "2 jobs are due, the oldest for 5.0 min, and no worker has made them ready" in run("status")
    assert json.loads(run("status", "--json"))["unknown_tasks"] == {"shop.mail": 2}


def test_status_counts_no_long_backlog_to_its_end(monkeypatch):
    monkeypatch.setattr(counts, "MOST", 3)
    for number in range(7):
        make("ready", queue="mail", age=number)
    make("ready", queue="few")
    text = run("status")
    assert re.search(r"^mail +0 +3\+ +0$", text, re.M)
    assert re.search(r"^few +0 +1 +0$", text, re.M)
    assert re.search(r"^total +0 +4\+ +0$", text, re.M)
    found = json.loads(run("status", "--json"))
    assert (found["queues"]["mail"]["ready"], found["queues"]["mail"]["capped"], found["capped"]) == (3, True, True)
    assert 6 <= found["queues"]["mail"]["oldest_ready_seconds"] < 20, "it is the first of its index"


def test_the_oldest_ready_job_is_found_behind_those_of_a_better_priority():
    make("ready", age=5, rank=-9)
    make("ready", age=50, rank=9)
    make("ready", age=20, rank=0)
    found = json.loads(run("status", "--json"))["queues"]["celery"]
    assert found["ready"] == 3
    assert 50 <= found["oldest_ready_seconds"] < 70


def test_status_of_an_empty_database_has_the_same_keys():
    found = json.loads(run("status", "--json"))
    assert set(found["jobs"].values()) == {0}
    assert (found["queues"], found["nodes"], found["oldest_ready_seconds"]) == ({}, [], None)
    assert (found["due"], found["unknown_tasks"]) == ({"count": 0, "lag_seconds": 0.0}, {})
    assert "workers: 0 alive, 0 silent, 0 died in the last day" in run("status")


def test_live_status_reads_no_history():
    make("succeeded")
    make("ready")
    with CaptureQueriesContext(connection) as queries:
        found = json.loads(run("status", "--live", "--json"))
    assert found["jobs"] == {
        "scheduled": 0, "ready": 1, "running": 0, "succeeded": None, "failed": None, "cancelled": None
    }  # fmt: skip
    assert not [q["sql"] for q in queries if "succeeded" in q["sql"]]


def test_no_page_reads_the_backlog():
    """50,000 ready and 50,000 scheduled jobs: each statement takes an index, and stops early."""
    made = int(time.time() * 1000)
    if connection.vendor == "postgresql":
        new_id = f"(lpad(to_hex({made} + i), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid"
        now = "now()"
    elif connection.vendor == "mysql":
        new_id = f"CONCAT(LPAD(LOWER(HEX({made} + i)), 12, '0'), '70008', LPAD(LOWER(HEX(i)), 15, '0'))"
        now = "NOW(6)"
    else:
        new_id, now = f"printf('%%012x70008%%015x', {made} + i, i)", "CURRENT_TIMESTAMP"
    with connection.cursor() as cursor:
        for state in ("ready", "scheduled"):
            cursor.execute(
                "INSERT INTO jobs_job "
                f"(id, task, queue, state, run_at, args, kwargs, rank, lease, retries, crashes, node_losses, snoozes) "
                f"SELECT {new_id.replace('70008', '70008' if state == 'ready' else '70009')}, 't', 'celery', "
                f"'{state}', {now}, '[]', '{{}}', 0, 0, 0, 0, 0, 0 FROM {numbers(50_000)}",
                [],
            )
    analyze("jobs_job")
    run("status", "--live")
    # To count up to a number in an order, MariaDB sorts the queue by its index; only people ask for that.
    for sql, params in asked_by(lambda: [run("status", "--live"), run("pause", "celery")], few=80_000):
        if "jobs_job" not in sql or connection.vendor == "mysql":
            continue
        text = plan(sql, params)
        assert not read_whole(text), f"{sql}\n{text}"
        assert not re.search(r"SCAN (jobs_job|following|ready|job)\b(?! USING)", text), f"{sql}\n{text}"


def test_status_as_text_is_a_table_in_line():
    make("running", node=make_node())
    make("ready", queue="mail", age=200)
    text = run("status")
    assert re.search(r"^queue +scheduled +ready +running$", text, re.M)
    assert re.search(r"^mail +0 +1 +0$", text, re.M)
    assert re.search(r"^total +0 +1 +1$", text, re.M)
    assert re.search(r"web1 +4711 +\? +\? +\d\.\d s +never \(silent\) +1 +celery, mail$", text, re.M)
    assert "the oldest ready job has waited 3.3 min" in text
    lines = text.splitlines()
    assert len({len(line) for line in lines[:3]}) == 1


def test_what_fails_steers_none_either():
    _, why = refused("tell", "stop", f"web{OBEYED}")
    assert "web\\x1b[2J" in why
    assert not set(why) & set("\x1b\x07\r\n\u202e\x9b"), why


def test_nodes_that_are_silent():
    with pytest.raises(CommandError, match="No worker is alive"):
        run("nodes")
    node = make_node()
    out = io.StringIO()
    with pytest.raises(CommandError, match="No worker is alive"):
        call_command("jobs", "nodes", stdout=out)
    assert "(silent)" in out.getvalue()
    let_heartbeat(node)
    run("nodes")
    assert not Job.objects.exists()


def test_nobody_calls_it_late_that_a_paused_queue_waits(worker):
    make("ready", age=3600)
    pauses.pause("celery")
    report = verify(patient=False)
    assert report.violations == report.recovering == 0
    assert "has waited" not in "".join(each.text for each in problems.of(status.gather(live=True)))
    pauses.resume("celery")
    assert verify(patient=False).violations == 1
    assert "has waited" in "".join(each.text for each in problems.of(status.gather(live=True)))


@pytest.fixture
def worker():
    """One that has been there for an hour, and does nothing."""
    node = make_node(concurrency=1, started_at=timezone.now() - datetime.timedelta(hours=1))
    let_heartbeat(node)


def test_a_paused_queue_is_said():
    make("ready")
    pauses.pause("celery", reason="why not")
    said = run("status", "--live")
    assert "the queue celery is paused (why not); 1 job waits; manage.py jobs resume celery" in said
    assert json.loads(run("status", "--json"))["queues"]["celery"]["paused"] is True
