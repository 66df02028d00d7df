"""In the process of Celery's tests: our task class, a worker process in place of a thread, and what came out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time

import pytest
from celery.app.control import Inspect
from celery.contrib.pytest import *  # noqa: F403
from celery.contrib.pytest import pytest_configure as register_marks
from celery.contrib.testing import manager, worker
from celery.utils.nodenames import anon_nodename

from tests.celery_suite import differences
from tests.helpers.servers import die_with_parent, wait_for

IS_OURS = "DJANGO_SETTINGS_MODULE" in os.environ
#: Seconds for a test, and for one that is known to fail.
LONGEST, KNOWN = 240, 20
#: What the worker's app has to know of the one of the tests.
TOLD = ("broker_url", "result_backend", "result_extended", "task_create_missing_queues")

if IS_OURS:
    import django

    django.setup()


def pytest_configure(config) -> None:
    register_marks(config)
    worker.start_worker = start_worker


@pytest.fixture(scope="session")
def celery_parameters():
    return {"task_cls": "jobs.task:Task"} if IS_OURS else {}


@contextlib.contextmanager
def start_worker(app, pool, **kwargs):
    """A real worker. The name is the one that the tests expect."""
    told = json.dumps({name: app.conf[name] for name in TOLD})
    command = [sys.executable, "-m", "celery", "-A", "tests.celery_suite.app", "worker", "-P", pool, "-c", "1"]
    command += ["-n", anon_nodename(), "--without-mingle", "--without-gossip", "--without-heartbeat", "-l", "INFO"]
    path = os.environ["CELERY_SUITE_RESULTS"] + ".worker"
    with open(path, "wb") as log:
        environment = {**os.environ, "CELERY_SUITE_APP": told}
        process = subprocess.Popen(die_with_parent(*command), stdout=log, stderr=log, env=environment)

    def is_ready() -> bool:
        with open(path, errors="replace") as log:
            text = log.read()
        assert process.poll() is None, text
        return " ready." in text

    wait_for(is_ready, 40, "the worker is ready")
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def pytest_collection_modifyitems(items) -> None:
    known, (hand, hands) = differences(), map(int, os.environ["CELERY_SUITE_HAND"].split("/"))
    items[:] = [item for item in items if not IS_OURS or _name(item.nodeid) not in known["stock"]][hand::hands]
    if (patience := int(os.environ["CELERY_SUITE_PATIENCE"])) > 1:
        # Fifty jobs have to be over a second after their call.
        from t.integration import test_canvas

        test_canvas.sleep = lambda seconds: time.sleep(seconds * patience if seconds >= 1 else seconds)
    for item in items:
        seconds = KNOWN if _name(item.nodeid) in known["ours"] | known["either"] else LONGEST
        item.add_marker(pytest.mark.timeout(seconds, method="signal"), append=False)


def _name(nodeid: str) -> str:
    return nodeid.removeprefix("t/integration/")


def pytest_runtest_logreport(report) -> None:
    """Of the parts of a test (its fixtures, its subtests) the first that failed counts."""
    seen = _outcomes.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0, "says": ""})
    # The time of a subtest is in its test's, too.
    seen["seconds"] += 0 if hasattr(report, "context") else report.duration
    if report.outcome != "passed" and seen["outcome"] != "failed":
        seen |= {"outcome": report.outcome, "says": report.longreprtext}
    if report.when == "teardown":
        with open(os.environ["CELERY_SUITE_RESULTS"], "a") as file:
            file.write(json.dumps({"test": _name(report.nodeid), **seen}) + "\n")


_outcomes: dict[str, dict] = {}


# One worker answers: nobody waits for a second one. Celery waits for a whole second, after each test.
_inspect = Inspect.__init__


def _init(self, *args, **kwargs) -> None:
    _inspect(self, *args, **kwargs)
    self.limit = self.limit or 1


Inspect.__init__ = _init


if IS_OURS:
    # What a test leaves in the queue is purged from the broker; jobs are no messages.
    from django.core.management import CommandError, call_command

    _wait_until_idle = manager.ManagerMixin.wait_until_idle

    def wait_until_idle(self) -> None:
        # What a process has just claimed is refused.
        with contextlib.suppress(CommandError):
            call_command("jobs", "cancel", "--queue", "celery", stdout=io.StringIO(), stderr=io.StringIO())
        _wait_until_idle(self)

    manager.ManagerMixin.wait_until_idle = wait_until_idle
