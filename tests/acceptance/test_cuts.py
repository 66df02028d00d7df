"""The server ends the session before each statement of a call, a claim and a run: an effect is there exactly if its
job has succeeded, whatever kind of task it is."""

from __future__ import annotations

import pytest
from celery import current_app, shared_task
from django.db import connection

from jobs import extensions
from jobs.contrib.grouped.runner import GroupingRunner
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.worker.runner import Runner
from tests.helpers import driver
from tests.helpers.cuts import cut_everywhere
from tests.helpers.harness import effects
from tests.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="another session ends this one"),
]


def write(key):
    Effect.objects.create(key=key)


plain = shared_task(name="tests.cuts.plain")(write)
grouped = shared_task(name="tests.cuts.grouped", grouped=True)(write)
relaxed = shared_task(name="tests.cuts.relaxed", synchronous_commit=False)(write)
# In a queue of its own: where a key is, keys take turns.
fair = shared_task(name="tests.cuts.fair", fair_key="{key}", queue="cuts")(write)


@pytest.mark.parametrize("task", [plain, grouped, relaxed, fair], ids=lambda task: task.name.rpartition(".")[2])
def test_an_effect_is_committed_with_its_job_wherever_the_session_ends(node, task, settings, monkeypatch):
    driver.prepares()
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 10}
    monkeypatch.setattr("jobs.worker.runner.BATCH_TIME", 100.0)
    monkeypatch.setattr("jobs.contrib.grouped.runner.GROUP_TIME", 60.0)
    worker_state.queues = [current_app.conf.task_default_queue, "cuts"]
    kind = GroupingRunner if task is grouped else extensions.instead(Runner)

    def call_and_run() -> None:
        try:
            task.delay_many([(key,) for key in "abc"])
        except Exception:
            # The caller has heard that there are none, or does not know.
            return
        runner = kind(current_app._get_current_object(), "here")
        runner._means, runner._next = {task.name: 0.001}, 10
        try:
            runner.run_batch()
        finally:
            runner.slot.free()

    found = []
    for _ in cut_everywhere(call_and_run, is_told=False):
        states = {job.args[0]: job.state for job in Job.objects.filter(task=task.name)}
        assert effects() == {key: 1 for key, state in states.items() if state == "succeeded"}
        assert len(states) in (0, 3)
        found.append(sorted(states.values()))
        Effect.objects.all().delete()
        Job.objects.all().delete()
    assert found[-1] == ["succeeded"] * 3
    assert ["ready"] * 3 in found
    assert len(found) > 5
    assert connection.is_usable()
