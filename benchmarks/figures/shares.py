"""How long somebody waits behind another one's backlog, if keys take turns; and what that costs the claim."""

from __future__ import annotations

import random
import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.figures.limits import compare
from benchmarks.goals import Goal
from benchmarks.scene import Scene, quantile

SIZES = (1, 10, 100)

#: The second tenant's jobs have numbers from here on.
SECOND = 10**9


class Shares(Figure):
    name = "shares"
    title = "Fair shares"
    about = (
        "200,000 empty jobs of one tenant, two processes, and 40 times a job of another tenant, with `fair_key`: from "
        "its commit to its start. Then claims, as under *Limits*: of 100,000 jobs of 10,000 keys in random order, and "
        "of as many without a key; how many times that of the others they are."
    )
    columns = (
        Column(key="p50_ms", title="the other one's start, p50 ms", digits=1, better="less"),
        Column(key="worst_ms", title="the worst, ms", digits=1, better="less"),
        *(Column(key=f"ratio_{size}", title=f"claim of {size}: times", digits=2, better="less") for size in SIZES),
    )
    goals = (
        Goal(figure="shares", key="worst_ms", most=1_000.0, unit="ms", says="another's start behind 200,000 jobs"),
        *(
            Goal(
                figure="shares",
                key=f"ratio_{size}",
                most=1.5,
                says=f"a claim of {size} beside 10,000 keys",
            )
            for size in SIZES
        ),
    )
    peers = quick_peers = ("jobs",)
    parts = ({"waiting": 200_000, "times": 40, "number": 100_000, "keys": 10_000, "seconds": 10},)
    quick_parts = ({"waiting": 5_000, "times": 5, "number": 20_000, "keys": 2_000, "seconds": 2},)
    rounds = 1
    timeout = 300.0

    def measure(
        self,
        scene: Scene,
        waiting: int = 0,
        times: int = 0,
        number: int = 0,
        keys: int = 0,
        seconds: float = 0,
        **options: Any,
    ) -> dict[str, float | None]:
        from benchmarks.project.celery import app
        from jobs.contrib.fair.claims import FairClaimer

        def body(key: int) -> None:
            """Never run: only the claims are measured."""

        found = self._starts(scene, waiting, times)
        keyed = app.task(name="keyed", lazy=False, queue="keyed", fair_key="{key}")(body)
        for size in SIZES:
            plain, fair = compare(scene, keyed, FairClaimer(app), number, keys, seconds, size)
            found[f"ratio_{size}"] = fair / plain
        return found

    def _starts(self, scene: Scene, waiting: int, times: int) -> dict[str, float | None]:
        from django.db import transaction

        from benchmarks.project.shares import fair

        scene.empty()
        for first in range(0, waiting, 10_000):
            with transaction.atomic():
                fair.delay_many([(each, "first") for each in range(first, min(first + 10_000, waiting))])
        scene.execute("VACUUM ANALYZE jobs_job")
        scene.finish()
        [command] = scene.peer.workers(2)
        lates = []
        with scene.running([[*command, "-Q", "fair"]]):
            if not scene.wait(100, 10):
                raise RuntimeError("the first tenant's jobs did not begin")
            for each in range(times):
                ends: list[int] = []
                with transaction.atomic():
                    transaction.on_commit(lambda: ends.append(time.monotonic_ns()))  # noqa: B023
                    fair.delay(SECOND + each, "second")
                deadline, known, at = time.monotonic() + 60, completions.count(), 0
                while not at and time.monotonic() < deadline:
                    time.sleep(0.002)
                    # It may have run before the count.
                    ran = completions.read(max(0, known - 1_000))
                    at = next((one.at for one in ran if one.number == SECOND + each), 0)
                lates.append(((at or time.monotonic_ns()) - ends[0]) / 1e6)
                time.sleep(random.uniform(0.05, 0.15))
        if completions.count() >= waiting:
            raise RuntimeError("the first tenant had nothing left: take more jobs")
        return {"p50_ms": quantile(lates, 0.5), "worst_ms": max(lates)}
