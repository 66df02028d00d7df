"""django-structlog: the caller's context is in the lines of the job."""

import json

import pytest
import structlog

from tests.helpers.harness import Worker, wait_ended
from tests.helpers.servers import wait_for
from tests.strangers.tasks import divides, logs

pytestmark = pytest.mark.django_db(transaction=True)


def lines(worker: Worker) -> list[dict]:
    return [json.loads(line[line.index("{") :]) for line in worker.text().splitlines() if '"event":' in line]


def test_lines_of_a_job_know_the_request_and_the_job():
    with structlog.contextvars.bound_contextvars(request_id="r1", user_id=7), Worker(concurrency=1) as worker:
        result, failing = logs.delay("a"), divides.delay(1, 0)
        wait_ended(result.id, failing.id)
        events = {"task_started", "in the body", "task_succeeded", "task_failed"}
        wait_for(lambda: events <= {line["event"] for line in lines(worker)}, 10, "all lines")
        for line in lines(worker):
            if line["event"] in events:
                ours = failing if line["event"] == "task_failed" else result
                assert line["task_id"] in (ours.id, failing.id)
                assert (line["request_id"], line["user_id"]) == ("r1", 7)
                assert line.get("parent_task_id") is None
