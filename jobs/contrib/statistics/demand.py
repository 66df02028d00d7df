"""How many processes the jobs need now: what an autoscaler asks."""

import math
from collections import Counter, defaultdict
from typing import Any

from django.utils import timezone

from jobs.contrib.statistics import tallies
from jobs.contrib.statistics.counting import HOUR, MINUTE
from jobs.contrib.statistics.histograms import mean

DRAIN = 60  #: Seconds in which what is ready should be worked off.
SAYS = f"Processes that are busy, and those that work off in {DRAIN} s what is ready and may run."


def processes(found: dict[str, Any]) -> dict[str, int]:
    """The processes that each queue needs, out of ``census.gather``: for what runs, and to work the rest off in time.

    How long a job takes is the mean of the last hour's; where none ended, each is taken to need a process of its own.
    What is held, and what a pause or the queue's limit keeps, needs none. Those that wait for a worker that knows their
    task need one. There are never more than there are jobs.
    """
    ran: dict[str, Counter[str]] = defaultdict(Counter)
    for row in tallies.of(MINUTE, timezone.now() - HOUR):
        ran[row.queue].update(row.ran)
    most = {row["name"]: row["concurrency"] for row in found.get("limits", ()) if row["kind"] == "queue"}
    needed = {}
    for name, queue in found["queues"].items():
        ready = 0 if queue["paused"] else queue["ready"] - queue["held"]
        takes = mean(ran[name])
        share = 1.0 if takes is None else min(1.0, takes / DRAIN)
        limit = most.get(name) or math.inf
        needed[name] = max(queue["running"], int(min(queue["running"] + math.ceil(ready * share), limit)))
        if queue["parked"] and not queue["paused"]:
            # Where nothing runs, the release that knows their task would never be started.
            needed[name] = max(1, needed[name])
    return needed


def samples(found: dict[str, Any]) -> list[tuple[list[str], int]]:
    """For Prometheus."""
    return [([name], number) for name, number in processes(found).items()]
