"""What Django promises of its tasks holds for ours: Django's own tests of its backends pass, but for those named here.

They come from the source distribution of Django; its stand-ins for a queue are replaced by our backend. Before Django
6 they run on the package ``django-tasks``, which brings no tests, and whose names differ.
"""

from __future__ import annotations

import re
import signal
import sys
import unittest

import django
import pytest
from celery import current_app

from jobs.django_tasks.task_backend import JobsBackend, _known
from jobs.testing import run_jobs
from tests.conftest import not_installed
from tests.helpers.sdist import unpack
from tests.helpers.servers import Missing

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

IS_BACKPORT = django.VERSION < (6,)
if IS_BACKPORT:
    pytest.importorskip("django_tasks")
RELEASE = "6.0" if IS_BACKPORT else django.__version__
#: ``test_custom_backend`` is not among them: it tries backends of its own.
MODULES = ("test_tasks", "test_dummy_backend", "test_immediate_backend")

#: Each reason, and the tests that fail for it.
DIFFERENCES = {
    "Django's immediate backend can neither wait nor find a result again; ours can": (
        "immediate_backend.ImmediateBackendTestCase.test_cannot_get_result",
        "immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after",
        "immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result",
    ),
    "a job runs after the commit of the transaction that enqueued it, and not within": (
        "immediate_backend.ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
    ),
    "they change, or clear, what Django's dummy backend has in memory; ours has rows": (
        "dummy_backend.DummyBackendTestCase.test_clear",
        "dummy_backend.DummyBackendTestCase.test_refresh_result",
        "dummy_backend.DummyBackendTestCase.test_refresh_result_async",
    ),
    "a coroutine calls refresh(), and not arefresh(): Django allows no query there": (
        "tasks.TaskTestCase.test_refresh_result",
    ),
}

REPLACED = {
    r"django\.tasks\.backends\.(dummy|immediate)": __name__,
    # Ours has a database.
    r"\bSimpleTestCase\b": "TransactionTestCase",
    r"available_apps = \[\]": "available_apps = None",
}
if IS_BACKPORT:
    REPLACED |= {
        r"\bdjango\.tasks\b": "django_tasks",
        r"\bInvalidTask(Backend)?\b": r"InvalidTask\1Error",
        "async Tasks": "async tasks",
    }


class DummyBackend(JobsBackend):
    """Ours, with what the tests ask Django's dummy: nothing runs, and it knows what was enqueued."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.clear()

    def clear(self):
        self.results = []

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        self.results.append(self.get_result(result.id))
        return result


class ImmediateBackend(JobsBackend):
    """Ours, and the job runs before the call returns."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        run_jobs(raises=False)
        return self.get_result(result.id)


@pytest.fixture
def outcomes(tmp_path) -> dict[str, str]:
    """For each test what it says if it failed, and nothing if it passed."""
    try:
        tests = unpack(tmp_path, "django", RELEASE, "tests/tasks/") / "tests"
    except Missing as exc:
        not_installed(str(exc))
    for path in tests.glob("tasks/*.py"):
        text = path.read_text()
        for old, new in REPLACED.items():
            text = re.sub(old, new, text)
        path.write_text(text)
    sys.path.insert(0, str(tests))
    # One test raises it. The shell, or an earlier test, may have left another handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loaded = unittest.defaultTestLoader.loadTestsFromNames([f"tasks.{name}" for name in MODULES])
        found = {_name(test): "" for module in loaded for case in module for test in case}
        loaded.run(result := unittest.TestResult())
    finally:
        signal.signal(signal.SIGINT, before)
        sys.path.remove(str(tests))
        for name in [name for name in _known if name.startswith("tasks.")]:
            del _known[name], current_app.tasks[name]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
            del sys.modules[name]
    return found | {_name(test): says for test, says in result.failures + result.errors}


def _name(test: unittest.TestCase) -> str:
    # A subtest counts as its test.
    return getattr(test, "test_case", test).id().removeprefix("tasks.test_")


def test_djangos_own_tests_pass_but_for_those_named(outcomes):
    named = {test for tests in DIFFERENCES.values() for test in tests}
    failed = {test: says for test, says in outcomes.items() if says}
    assert not failed.keys() - named, "\n\n".join(f"{test}\n{failed[test]}" for test in failed.keys() - named)
    assert not named - failed.keys(), "these pass: take them out of DIFFERENCES"
