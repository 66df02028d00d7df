"""Every line says what it is about, in fields that a log store can search."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from jobs.conf import logs
from jobs.models import Job, Node
from tests import tasks
from tests.helpers.harness import Worker, in_body, wait_ended, wait_state
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_that_no_worker_had_yet_has_no_node(caplog):
    job = Job.objects.get(pk=tasks.noop.delay().id)
    with caplog.at_level(logging.INFO, "jobs"):
        logs.log(logging.INFO, job, "waits", "waits", count=1)
        logs.log(logging.DEBUG, job, "is not heard", "waits")
    [record] = caplog.records
    assert record.getMessage() == f"tests.tasks.noop[{job.pk}] waits"
    assert (record.job, record.task, record.queue) == (str(job.pk), "tests.tasks.noop", job.queue)
    assert (record.node, record.lease, record.action, record.count) == (None, 0, "waits", 1)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_the_lines_of_workers_carry_job_task_and_node(tmp_path):
    """Two workers, of which one is killed, and everything that can become of a run."""
    log = tmp_path / "log"
    with Worker(concurrency=2, JOBS_TEST_LOG=str(log), JOBS_TEST_FORGET="tests.tasks.touches") as worker:
        ids = {
            "succeeded": tasks.effect.delay("a").id,
            "failed": tasks.raises.delay("no").id,
            "retried": tasks.retries.delay("b", 1).id,
            "cancelled": tasks.steps_out.delay("c", "ignore").id,
            "crashed": tasks.kills_once.delay("d", str(tmp_path / "marker")).id,
            "timed_out": tasks.never_ends.delay("e").id,
            "result_repr": tasks.returns_object.delay().id,
        }
        wait_ended(*ids.values(), timeout=60)
        ids["unknown_task"] = tasks.touches.delay(1).id
        wait_state(ids["unknown_task"], "scheduled")
        ids["rescued"] = tasks.waits.delay("h", str(tmp_path / "started"), str(tmp_path / "gate")).id
        in_body(ids["rescued"], tmp_path / "started")
        worker.kill()
        (tmp_path / "gate").touch()
    with Worker(concurrency=1, JOBS_TEST_LOG=str(log)):
        wait_ended(ids["rescued"], timeout=40)

    lines = [line for line in read(log) if line["logger"] == "jobs"]
    for line in lines:
        assert line["action"], line
    tasks_of = {str(key): task for key, task in Job.objects.values_list("pk", "task")}
    nodes = {str(key) for key in Node.objects.values_list("pk", flat=True)}
    for line in lines:
        about = [key for key in tasks_of if key in line["message"]]
        if "job" in line:
            about.append(line["job"])
        for key in about:
            assert (line["job"], line["task"]) == (key, tasks_of[key]), line
            assert line["node"] in nodes, line
        if any(key in line["message"] for key in nodes):
            assert line["node"] in nodes, line
    # Each was told, about its own job, with the claim that it was.
    for action, key in ids.items():
        told = [line for line in lines if (line["action"], line.get("job")) == (action, key)]
        assert told, f"{action}: {[line for line in lines if line.get('job') == key]}"
        if action != "timed_out":
            assert all(line["lease"] >= 1 and line["queue"] for line in told), told
    actions = {line["action"] for line in lines}
    assert actions >= {"node_up", "node_dead", "started"}, actions
    ran = next(line for line in lines if line["action"] == "succeeded")
    assert 0 < ran["runtime"] < 60


@pytest.mark.slow
def test_at_info_a_success_is_one_line():
    """Celery's own; ours would only repeat it."""
    with Worker(concurrency=1) as worker:
        wait_ended(key := tasks.noop.delay().id)
        wait_for(lambda: f"[{key}] succeeded in" in worker.text(), 10, "Celery says so")
        assert worker.stop() == 0
        assert worker.text().count("succeeded") == 1
