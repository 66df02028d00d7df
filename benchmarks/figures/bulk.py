"""How many jobs a second can be enqueued in one transaction."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.figures.figure import CALLERS, OURS, Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene


class Bulk(Figure):
    name = "bulk"
    title = "Bulk"
    about = (
        "10,000 jobs in one `atomic()`, up to and with the commit and what is published after it: `delay_many` "
        "of jobs, `batch_defer` of Procrastinate, `enqueue` of PgQueuer with lists, `enqueue_many` of Oban and "
        "django-ox, loops of the others. awa's COPY goes over a connection of its own, outside of the transaction."
    )
    columns = (
        Column(key="seconds", title="seconds", digits=2),
        Column(key="per_s", title="jobs/s", better="more", is_drawn=True),
    )
    goals = (
        Goal(
            figure="bulk", key="per_s", against=("procrastinate",), least=1.2, says="jobs at once, beside Procrastinate"
        ),
    )
    peers = CALLERS
    more_peers = OURS
    quick_peers = ("jobs", "celery-redis", "procrastinate")
    parts = ({"number": 10_000},)
    quick_parts = ({"number": 2_000},)

    def measure(self, scene: Scene, number: int = 0, **options: Any) -> dict[str, float | None]:
        from django.db import transaction

        scene.empty()
        keys = scene.users(number)
        scene.enqueue()
        scene.finish()
        began = time.perf_counter()
        with transaction.atomic():
            scene.peer.bulk(scene.task("noop"), keys)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "per_s": number / seconds}
