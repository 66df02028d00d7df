"""What ``celery events`` are told of jobs, which are no messages."""

from __future__ import annotations

import json
import os

import pytest
from celery import current_app, shared_task

from jobs.contrib.celery_events import pipe
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import wait_ended, wait_state
from tests.helpers.monitor import Receiver
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["jobs", pytest.param("redis", marks=pytest.mark.servers)])
def broker(request, use_broker):
    use_broker(request.getfixturevalue("redis_server").url if request.param == "redis" else "jobs://")
    return request.param


@pytest.mark.slow
def test_events_of_jobs_reach_a_monitor(broker):
    with Receiver() as monitor, Worker("-E", concurrency=1):
        done = tasks.effect.delay("done")
        failed = tasks.raises.delay("no")
        retried = tasks.autoretries.delay("again")
        wait_ended(done.id, failed.id, retried.id)
        stock = tasks.stock.delay("stock")
        wait_for(lambda: "task-succeeded" in monitor.kinds(stock.id), 20, "those of a stock task")
        wait_for(lambda: monitor.kinds(retried.id).count("task-received") == 3, 20, "those of the last attempt")
        wait_for(lambda: "task-failed" in monitor.kinds(retried.id), 20, "its end")
    assert monitor.kinds(done.id) == ["task-received", "task-started", "task-succeeded"]
    assert monitor.kinds(failed.id) == ["task-received", "task-started", "task-failed"]
    assert monitor.kinds(retried.id).count("task-retried") == 2
    received, started, succeeded = monitor.heard[done.id]
    assert (received["name"], received["args"], received["retries"]) == ("tests.tasks.effect", "('done',)", 0)
    assert succeeded["runtime"] > 0
    assert "'done'" in succeeded["result"]
    assert started["pid"]
    assert "ValueError" in monitor.heard[failed.id][-1]["exception"]


@shared_task
async def tells_of_coroutines(fails):
    if fails:
        raise ValueError("no")
    return "done"


@pytest.mark.slow
def test_events_of_coroutines_reach_a_monitor(broker):
    with Receiver() as monitor, Worker("-E", concurrency=1):
        done, failed = tells_of_coroutines.delay(False), tells_of_coroutines.delay(True)
        wait_ended(done.id, failed.id)
        wait_for(lambda: "task-failed" in monitor.kinds(failed.id), 20, "its end")
        wait_for(lambda: "task-succeeded" in monitor.kinds(done.id), 20, "its end")
    assert monitor.kinds(done.id) == ["task-received", "task-started", "task-succeeded"]
    assert monitor.kinds(failed.id) == ["task-received", "task-started", "task-failed"]


@pytest.mark.slow
def test_without_a_wish_for_events_there_are_none():
    with Receiver() as monitor, Worker(concurrency=1):
        done = tasks.effect.delay("done")
        wait_ended(done.id)
        wait_state(done.id, "succeeded")
        assert not monitor.heard[done.id]
        # Nobody looked for events until now.
        assert current_app.control.enable_events(reply=True, timeout=10, limit=1)
        heard = tasks.effect.delay("heard")
        wait_for(lambda: "task-succeeded" in monitor.kinds(heard.id), 20, "events that somebody wants from now on")


@pytest.mark.parametrize("letter", ["a", "\u0416", "\u4e00", "\U0001f600", "\ud800"])
def test_the_first_event_of_a_job_is_told_whatever_its_arguments_are(letter):
    """A pipe takes 4,096 bytes at once; a monitor that hears nothing at the beginning does not know the task."""
    pipe._write("task-received", {"uuid": "x", "name": "t", "args": letter * 1500, "kwargs": letter * 1500})
    line = os.read(pipe._reader, 65536)
    assert json.loads(line)["args"][0] == (letter if letter != "\ud800" else "?")
