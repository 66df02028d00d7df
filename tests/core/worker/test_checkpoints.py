"""A long body asks whether to go on."""

from __future__ import annotations

import os
import time
import uuid

import pytest
from celery import shared_task

from jobs.lifecycle import transitions
from tests.helpers.gates import once_only
from tests.helpers.harness import Worker, effects, in_body, wait_ended
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@shared_task(bind=True, atomic=False)
def checks(self, key, started, seconds=60.0):
    """Long, and asks now and then whether to go on."""
    once_only(started)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        self.checkpoint()
        time.sleep(0.05)
    Effect.objects.create(key=key, pid=os.getpid())


def test_checkpoint_in_a_plain_call_does_nothing(tmp_path):
    checks("a", str(tmp_path / "started"), seconds=0.1)
    assert effects() == {"a": 1}


def test_a_long_body_ends_at_its_next_checkpoint(tmp_path):
    started = tmp_path / "started"
    with Worker(concurrency=1):
        job = checks.delay("a", str(started))
        in_body(job.id, started)
        assert transitions.ask_to_end(uuid.UUID(job.id), "default", why="changed my mind")
        [row] = wait_ended(job.id)
    assert (row.state, row.error["message"]) == ("cancelled", "changed my mind")
    assert not effects()
