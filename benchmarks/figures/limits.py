"""What limits cost the claim."""

from __future__ import annotations

import random
import time
import uuid
from statistics import median
from typing import Any

from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: A claim asks for so many jobs.
SIZES = (1, 10, 100)


class Limits(Figure):
    name = "limits"
    title = "Limits"
    about = (
        "One process claims, and ends what it claimed: in turn from a queue of jobs without a limit, and from one "
        "whose task has `concurrency=1` for each of 10,000 keys, in random order. 100,000 wait in each. The median of "
        "the claims, and how many times that of the others it is."
    )
    columns = (
        *(Column(key=f"plain_{size}_ms", title=f"{size} at a time: without, ms", digits=2) for size in SIZES),
        *(Column(key=f"limited_{size}_ms", title=f"{size}: limited, ms", digits=2, better="less") for size in SIZES),
        *(Column(key=f"ratio_{size}", title=f"{size}: times", digits=2, better="less") for size in SIZES),
    )
    goals = tuple(
        Goal(figure="limits", key=f"ratio_{size}", most=1.5, says=f"a claim of {size} under limits, beside one without")
        for size in SIZES
    )
    peers = quick_peers = ("jobs",)
    parts = ({"number": 100_000, "keys": 10_000, "seconds": 10},)
    quick_parts = ({"number": 20_000, "keys": 2_000, "seconds": 2},)
    rounds = 1
    timeout = 300.0

    def measure(
        self, scene: Scene, number: int = 0, keys: int = 0, seconds: float = 0, **options: Any
    ) -> dict[str, float | None]:
        from benchmarks.project.celery import app
        from jobs.contrib.limits.claims import LimitedClaimer

        def body(key: int) -> None:
            """Never run: only the claims are measured."""

        limited = app.task(name="limited", lazy=False, queue="limited", concurrency=1, limit_key="{key}")(body)
        found: dict[str, float | None] = {}
        for size in SIZES:
            plain, other = compare(scene, limited, LimitedClaimer(app), number, keys, seconds, size)
            found |= {f"plain_{size}_ms": plain, f"limited_{size}_ms": other, f"ratio_{size}": other / plain}
        return found


def compare(
    scene: Scene, keyed: Any, claimer: Any, number: int, keys: int, seconds: float, size: int
) -> tuple[float, float]:
    """Claim in turn from a queue without keys and, by this claimer, from that of a task with so many.

    Parameters:
        number: jobs in each queue.
        size: jobs of a claim.

    Returns:
        The medians of both, in milliseconds.
    """
    from django.db import transaction
    from django.db.models.functions import Now

    from jobs.lifecycle.claims import Claimer
    from jobs.models import Job, Node

    scene.empty()
    random.seed(size)
    node = uuid.uuid4()
    Node.objects.create(pk=node, hostname="here", pid=1)
    order = [(each % keys,) for each in range(number)]
    random.shuffle(order)
    claimers = {"plain": (scene.task("noop"), Claimer()), keyed.queue: (keyed, claimer)}
    for queue, (task, _) in claimers.items():
        for first in range(0, number, 10_000):
            with transaction.atomic():
                task.delay_many(order[first : first + 10_000], queue=queue)
    scene.execute("VACUUM ANALYZE jobs_job")
    scene.finish()
    times: dict[str, list[float]] = {queue: [] for queue in claimers}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for queue, (_, each) in claimers.items():
            began = time.perf_counter()
            jobs = each.claim("default", queue, node, size)
            times[queue].append(time.perf_counter() - began)
            rows = Job.objects.filter(pk__in=[job.pk for job in jobs])
            rows.update(state="succeeded", finished_at=Now(), error=None)
    plain, other = (1e3 * median(found) for found in times.values())
    return plain, other
