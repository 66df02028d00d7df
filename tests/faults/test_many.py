"""Many processes, and the death of one every few seconds."""

from __future__ import annotations

import os
import random
import time

import pytest

from jobs.models import Job
from tests import tasks
from tests.faults.fleet import Fleet
from tests.faults.guards import guard
from tests.faults.ledger import LEAST, LOST_WORKER
from tests.helpers.servers import wait_for
from tests.models import Order


@guard("jobs.maintenance.rescue:OwnJobs.finish_dead", "jobs.maintenance.rescue:OwnJobs.hand_back_orphans")
@guard("jobs.maintenance.rescue:rescue_all")
@pytest.mark.parametrize(("seconds", "kills"), [(20, 10), pytest.param(60, 12, marks=pytest.mark.long)])
def test_many_processes_and_one_killed_every_few_seconds(ledger, seconds, kills):
    """Children, supervisors, whole workers and producers; three jobs run nearly all the time, innocent of it.

    Guard: the worker state says what each process runs; the rescue by heartbeat; each kind of loss has its count.
    """
    seed = int(os.environ.get("JOBS_TEST_SEED") or random.randrange(10**6))
    print(f"JOBS_TEST_SEED={seed}")  # noqa: T201  (of a scenario that failed)
    ledger.enqueue(3, tasks.slow, kwargs={"seconds": 0.7 * seconds})
    # No process is idle at first: each kill hits somebody's job.
    ledger.enqueue(max(LEAST, 12 * seconds), tasks.lingers, kwargs={"seconds": 0.3})
    ours = Order.objects.count()
    with Fleet(seed, workers=4, producers=3) as fleet:
        ledger.wait_effects(20)
        wait_for(lambda: Order.objects.count() > ours, 60, "the producers are at work")
        for number in range(kills):
            if number % len(fleet.KINDS) == 0:
                kinds = fleet.random.sample(fleet.KINDS, len(fleet.KINDS))
            time.sleep(seconds / kills)
            print(fleet.kill(kinds.pop()))  # noqa: T201
        fleet.end_producers()
        ledger.check(within=0.7 * seconds + LOST_WORKER)
    innocent = Job.objects.filter(task="tests.tasks.slow")
    assert set(innocent.values_list("state", flat=True)) == {"succeeded"}
    assert max(innocent.values_list("node_losses", flat=True)) <= fleet.killed["worker"]
    assert sum(Job.objects.values_list("crashes", flat=True)) <= fleet.killed["child"]
