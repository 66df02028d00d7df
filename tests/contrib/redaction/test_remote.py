"""Monitors and remote control are told nothing that people may not see."""

from __future__ import annotations

import pytest

from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import in_body, wait_ended
from tests.helpers.monitor import Receiver, inspect
from tests.helpers.redactions import redact
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def hide_keys(task: str, name: str, value):
    return "***" if name == "key" else value


@pytest.mark.slow
def test_neither_a_monitor_nor_a_command_is_told_what_people_may_not_see(settings, tmp_path):
    redact(settings, "tests.contrib.redaction.test_remote.hide_keys")
    started, gate, secret = tmp_path / "started", tmp_path / "gate", "s3cret-4711"
    with Receiver() as monitor, Worker("-E", concurrency=1) as worker:
        running = tasks.waits.delay(secret, str(started), str(gate))
        in_body(running.id, started)
        [active] = inspect(worker, "active")
        [[_, queried]] = inspect(worker, "query_task", running.id).values()
        gate.touch()
        done = tasks.effect.delay(secret)
        failed = tasks.fails.delay(secret)
        wait_ended(running.id, done.id, failed.id)
        wait_for(lambda: len(monitor.heard[done.id]) == len(monitor.heard[failed.id]) == 3, 20, "all of it is told")
    assert active["args"] == f"('***', '{started}', '{gate}')"
    assert secret not in str([active, queried, *monitor.heard.values()])
    assert monitor.heard[failed.id][-1]["exception"] == "LookupError('***')"
    assert monitor.heard[done.id][-1]["result"] == "'***'", "it is the argument"
