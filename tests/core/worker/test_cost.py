"""What it costs to find jobs: how many claims and other statements, and how many connections."""

from __future__ import annotations

import fcntl
import struct
import termios

import pytest
from celery import current_app

from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.worker.runner import Runner
from tests import tasks
from tests.settings import JOBS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUE = "celery"


@pytest.fixture
def runner(node, monkeypatch):
    """A process of a worker whose others are all busy: nobody takes a wake-up."""
    monkeypatch.setattr(Runner, "wakeup", Wakeup())
    worker_state.queues = [QUEUE]
    runner = Runner(current_app._get_current_object(), "here")
    yield runner
    runner.slot.free()


@pytest.fixture
def claims(runner, monkeypatch) -> list[str]:
    """The queues that it claims from, claim by claim."""
    queues, claim = [], runner._claimer.claim
    monkeypatch.setattr(runner._claimer, "claim", lambda *args: (queues.append(args[1]), claim(*args))[1])
    return queues


def unread(wakeup: Wakeup) -> int:
    """How many wake-ups nobody has taken yet."""
    return struct.unpack("i", fcntl.ioctl(wakeup.fileno(), termios.FIONREAD, bytes(4)))[0]


def test_a_drain_leaves_no_wakeups_behind(runner, claims, settings):
    """Each full claim wakes one for the rest. While all are busy nobody takes that, and afterwards each was a claim."""
    settings.JOBS = {**JOBS, "CLAIM_BATCH": 1}
    tasks.noop.delay_many([(number,) for number in range(200)], queue=QUEUE)
    while runner.run_batch():
        pass
    assert not Job.objects.exclude(state="succeeded").exists()
    assert len(claims) == 200 + 2, "the last one, and one more for all that was told meanwhile"
    assert unread(runner.wakeup) == 0
    assert not runner.run_batch()
    assert len(claims) == 203


def test_what_is_told_during_a_look_is_looked_for_once_more(runner, monkeypatch):
    """It may have been committed after that look."""
    claim = runner._claimer.claim

    def claim_and_tell(*args):
        found = claim(*args)
        if not Job.objects.exists():
            tasks.noop.apply_async((1,), queue=QUEUE)
            runner.wakeup.send()
        return found

    monkeypatch.setattr(runner._claimer, "claim", claim_and_tell)
    assert runner.run_batch()
    assert Job.objects.get().state == "succeeded"
