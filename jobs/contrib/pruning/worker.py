"""The supervisor's thread that prunes."""

from __future__ import annotations

from threading import Event

from jobs.conf import conf
from jobs.contrib.pruning.prune import Prune
from jobs.doors import Attempt
from jobs.lifecycle.worker_state import worker_state

#: Seconds of one round of pruning, and until the next one if that was not enough.
BUDGET, AGAIN = 2.0, 1.0


def run(stopping: Event, attempt: Attempt) -> None:
    prune, pause = Prune(lambda: worker_state.node), 1.0
    while not stopping.wait(pause):
        attempt(lambda: prune.run_once(budget=BUDGET))
        pause = AGAIN if prune.is_behind else max(1.0, conf().PRUNE_INTERVAL)
