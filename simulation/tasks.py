"""The tasks of the cluster. A body waits on the simulated clock, in its transaction, before and after its effect."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from simulation.models import Effect
from simulation.world import world

app = Celery("simulation", task_cls="jobs.task:Task")
app.config_from_object("django.conf:settings", namespace="CELERY")


def _work(task: Any, seconds: float) -> None:
    share = world.random.random()
    time.sleep(share * seconds)
    Effect.objects.create(job=task.job.pk)
    time.sleep((1 - share) * seconds)


@app.task(bind=True, name="plain")
def plain(self: Any, seconds: float) -> None:
    _work(self, seconds)


@app.task(bind=True, name="limited", concurrency=int(os.environ["SIMULATION_LIMIT"]))
def limited(self: Any, seconds: float) -> None:
    _work(self, seconds)


@app.task(bind=True, name="fails", autoretry_for=(OSError,), default_retry_delay=5, max_retries=None)
def fails(self: Any, seconds: float) -> None:
    _work(self, seconds)
    if world.random.random() < 0.5:
        raise OSError("try again")


@app.task(bind=True, name="ticks", every=10)
def ticks(self: Any) -> None:
    _work(self, 0.5)


#: What callers call, and how often of a hundred.
MIX = ((plain, 84), (limited, 8), (fails, 8))
