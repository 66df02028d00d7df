"""A running job is asked to end: its row belongs to its run, so the request stands beside it."""

from __future__ import annotations

import uuid

import pytest

from jobs.conf import syncpoints
from jobs.lifecycle import transitions
from jobs.maintenance import clock
from jobs.models import Cancellation, Job
from tests import tasks
from tests.helpers.harness import claim, deliver, effects

pytestmark = pytest.mark.django_db(transaction=True)


def ask(at: str) -> None:
    """Ask the job that runs to end, when its run reaches the point."""
    syncpoints.arm(lambda point: point == at and transitions.ask_to_end(Job.objects.get().pk, "default"))


def over() -> Job:
    assert not Cancellation.objects.exists()
    return Job.objects.get()


def test_a_run_that_was_asked_to_end_rolls_back_at_its_end(node):
    result = tasks.effect.delay("a")
    ask("after_claim")
    assert deliver(result)[0] == "IGNORED"
    job = over()
    assert (job.state, job.error["type"], job.lease) == ("cancelled", "Cancelled", 1)
    assert not effects()


def test_a_retry_does_not_come_back(node):
    result = tasks.retries.delay("a", 3)
    ask("after_claim")
    deliver(result)
    assert (over().state, over().retries) == ("cancelled", 0)


def test_a_failure_stays_a_failure(node):
    result = tasks.raises.delay("wrong")
    ask("after_claim")
    deliver(result)
    assert Job.objects.get().state == "failed"
    assert clock.tick()["cancelled"] == 0
    assert over().error["type"] == "ValueError"


def test_a_request_that_came_as_the_job_went_back_is_swept(node):
    """Race: the run had looked for the note, and then went back to wait."""
    result = tasks.effect.delay("a")
    Cancellation.objects.create(job=result.id, reason="by hand")
    assert clock.tick()["cancelled"] == 1
    assert over().state == "cancelled"


def test_a_zombie_does_not_take_its_successors_request(node):
    result = tasks.effect.delay("a")
    zombie = claim(result.id)
    Job.objects.update(state="ready")
    claim(result.id)
    assert transitions.ask_to_end(uuid.UUID(result.id), "default")
    assert not transitions.heed(zombie)
    assert Cancellation.objects.exists()


def test_nobody_is_asked_where_nothing_runs(node):
    result = tasks.effect.delay("a")
    assert not transitions.ask_to_end(uuid.UUID(result.id), "default")
    assert not Cancellation.objects.exists()
