"""What tasks cost that sleep, or wait for a signal."""

from __future__ import annotations

import time
import uuid
from statistics import median
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene, quantile

KINDS = ("claim", "tick", "signal")

#: Half of the jobs of ``wait`` sleep, the others wait for signals that nobody sends.
_SUSPEND = (
    """
    UPDATE jobs_job SET state = 'scheduled', run_at = now() + interval '1 day' WHERE task = %s AND state = 'ready'
    """,
    """
    INSERT INTO jobs_step (job, name, kind, state, lease, failures, key, until, made_at)
    SELECT id, 'wait', 'sleep', 'waiting', 1, 0, '', run_at, now() FROM jobs_job WHERE task = %s
    """,
    """
    UPDATE jobs_job SET waits_for = 'signal:never:' || id, run_at = '9000-01-01'
    WHERE task = %s AND get_byte(uuid_send(id), 15) %% 2 = 0
    """,
)


class Waits(Figure):
    name = "waits"
    title = "Tasks that wait"
    about = (
        "100,000 durable tasks of which half sleep and half wait for a signal: a claim of 10 jobs, the clock's look of "
        "each second, and a signal with its commit, beside the same without them, before and after; medians, by one "
        "process. Then two processes: from the end of the COMMIT of a signal to the line after the wait, in a task "
        "that waits for it; and from that of a call to the body of a plain job."
    )
    columns = (
        *(Column(key=f"{kind}_ms", title=f"{kind}: without, ms", digits=2) for kind in KINDS),
        *(Column(key=f"{kind}_ratio", title=f"{kind}: times", digits=2, better="less") for kind in KINDS),
        Column(key="p50_ms", title="signal to task, p50 ms", digits=1, better="less"),
        Column(key="p99_ms", title="p99 ms", digits=1),
        Column(key="job_p50_ms", title="call to job, p50 ms", digits=1),
    )
    goals = (
        *(
            Goal(figure="waits", key=f"{kind}_ratio", most=1.1, says=f"100,000 tasks wait: a {kind}, beside none")
            for kind in KINDS
        ),
        Goal(figure="waits", key="p50_ms", most=5.0, unit="ms", says="100,000 tasks wait: signal to task, p50"),
    )
    peers = ("jobs",)
    parts = ({"waiting": 100_000, "times": 900, "calls": 150},)
    quick_parts = ({"waiting": 5_000, "times": 50, "calls": 30},)
    rounds = 2
    timeout = 300.0

    def measure(
        self, scene: Scene, waiting: int = 0, times: int = 0, calls: int = 0, **options: Any
    ) -> dict[str, float | None]:
        scene.empty()
        before = self._costs(scene, times)
        self._suspend(scene, waiting)
        beside = self._costs(scene, times)
        with scene.workers():
            scene.warm()
            found = self._wakes(scene, calls)
            calls_to_jobs = scene.latencies(calls, 20)
        # Once more, because the machine is not the same half a minute later.
        scene.empty()
        after = self._costs(scene, times)
        without = {kind: (before[kind] + after[kind]) / 2 for kind in KINDS}
        return {
            **{f"{kind}_ms": without[kind] for kind in KINDS},
            **{f"{kind}_ratio": beside[kind] / without[kind] for kind in KINDS},
            "p50_ms": quantile(found, 0.5),
            "p99_ms": quantile(found, 0.99),
            "job_p50_ms": quantile(calls_to_jobs, 0.5),
        }

    def _suspend(self, scene: Scene, number: int) -> None:
        from benchmarks.project.waits import wait

        for first in range(0, number, 10_000):
            wait.delay_many([(each,) for each in range(first, min(number, first + 10_000))])
        for statement in _SUSPEND:
            scene.execute(statement, [wait.name])
        scene.execute("VACUUM ANALYZE jobs_job")
        scene.execute("VACUUM ANALYZE jobs_step")

    def _costs(self, scene: Scene, times: int) -> dict[str, float]:
        """The median milliseconds of each."""
        from django.db import transaction
        from django.db.models.functions import Now

        import jobs
        from jobs.lifecycle.claims import Claimer
        from jobs.maintenance import clock
        from jobs.models import Job, Node

        node = uuid.uuid4()
        Node.objects.create(pk=node, hostname="here", pid=1)
        scene.fill("noop", 10 * times)
        scene.execute("VACUUM ANALYZE jobs_job")
        scene.finish()
        claimer, queue = Claimer(), Job.objects.filter(state="ready").values_list("queue", flat=True)[0]

        def claim() -> None:
            claimer.claim("default", queue, node, 10)

        def signal() -> None:
            with transaction.atomic():
                jobs.signal("nobody")

        found: dict[str, list[float]] = {}
        # Signals come last: after one, the looks of a minute do more.
        for kind, call in zip(KINDS, (claim, clock.tick, signal), strict=True):
            for _ in range(times):
                began = time.perf_counter()
                call()
                found.setdefault(kind, []).append(1e3 * (time.perf_counter() - began))
        Job.objects.filter(state="running").update(state="succeeded", finished_at=Now())
        scene.execute("DELETE FROM jobs_signal")
        return {kind: median(each) for kind, each in found.items()}

    def _wakes(self, scene: Scene, calls: int) -> list[float]:
        from django.db import transaction

        import jobs
        from benchmarks.project.waits import wait

        keys = range(10**6, 10**6 + calls)
        wait.delay_many([(each,) for each in keys])
        deadline = time.monotonic() + 60
        while scene.execute("SELECT count(*) FROM jobs_job WHERE starts_with(waits_for, 'signal:go:')") != [(calls,)]:
            if time.monotonic() > deadline:
                raise RuntimeError("the tasks did not begin to wait")
            time.sleep(0.1)
        found = []
        for key in keys:
            known, committed = completions.count(), []
            with transaction.atomic():
                # The first hook, so it is called before that of the signal.
                transaction.on_commit(lambda: committed.append(time.monotonic_ns()))  # noqa: B023
                jobs.signal(f"go:{key}")
            while completions.count() == known:
                if time.monotonic() > deadline + 60:
                    raise RuntimeError("a signal woke nobody")
                time.sleep(0.002)
            found.append((completions.read(known)[0].at - committed[0]) / 1e6)
            time.sleep(0.03)
        return found
