"""What a full table costs."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.enqueue import compare, warm_up
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene, quantile

#: So many of each kind.
ROWS = int(os.environ.get("BENCH_ROWS", 2_000_000)) // 2

#: A queue that is paused.
WAITING = "waiting"

#: One row becomes many. All times of a copy move by the same amount, so that it could be a real row.
_COPY = """
INSERT INTO jobs_job ({columns})
SELECT {values}
FROM jobs_job AS one, generate_series(1, %s) AS number,
    LATERAL (SELECT number * interval '50 ms' + interval '{ago}' AS ago, md5(number::text || %s) AS drawn) AS many
WHERE one.id = %s
"""

#: An id as `delay()` allocates it, with the milliseconds first.
_ID = (
    "(lpad(to_hex((extract(epoch FROM now() - ago) * 1000)::bigint), 12, '0') || '7' || substr(drawn, 1, 3)"
    " || '8' || substr(drawn, 4, 15))::uuid"
)


class Size(Figure):
    name = "size"
    title = "A full table"
    about = (
        f"Ours again, in an empty table and in one with {ROWS:,} finished jobs and {ROWS:,} that wait in a paused "
        "queue: copies, in SQL, of one that `delay()` made, and of one that ran; then VACUUM and ANALYZE."
    )
    columns = (
        Column(key="rows", title="rows before"),
        Column(key="added_ms", title="enqueue: added p50 ms", digits=3, better="less", is_drawn=True),
        Column(key="idem_per_s", title="idem, jobs/s", better="more", is_drawn=True),
        Column(key="p50_ms", title="commit to start, p50 ms", digits=1, better="less", is_drawn=True),
        Column(key="p99_ms", title="p99 ms", digits=1),
    )
    goals = tuple(
        Goal(
            figure="size",
            key=key,
            peer="jobs-full",
            against=("jobs",),
            most=most,
            least=least,
            says=f"full table: {says}, beside an empty one",
        )
        for key, most, least, says in (
            ("added_ms", 1.1, None, "added p50 of a call"),
            ("idem_per_s", None, 0.9, "idem"),
            ("p50_ms", 1.1, None, "commit to start, p50"),
        )
    )
    peers = ("jobs", "jobs-full")
    parts = ({"rows": ROWS, "number": 1_000, "drained": 4_000, "seconds": 40, "calls": 150},)
    rounds = 2
    quick_parts = ({"rows": 20_000, "number": 200, "drained": 400, "seconds": 20, "calls": 20},)
    timeout = 600.0

    def measure(
        self,
        scene: Scene,
        rows: int = 0,
        number: int = 0,
        drained: int = 0,
        seconds: float = 0,
        calls: int = 0,
        **options: Any,
    ) -> dict[str, float | None]:
        # The jobs of one round stay in the full table for the next one: they are few, and finished.
        if scene.peer.name == "jobs-full":
            _fill(scene, rows)
        else:
            scene.empty()
        completions.path().unlink(missing_ok=True)
        scene.execute("VACUUM (ANALYZE) jobs_job")
        [(before,)] = scene.execute("SELECT count(*) FROM jobs_job")
        scene.finish()
        warm_up(scene)
        added = compare(scene, number)["added_ms"]
        with scene.workers():
            scene.wait(number, seconds)
        skip = completions.count()
        keys = set(scene.fill("idem", drained))
        bury(scene)
        with scene.workers():
            if not scene.wait(skip + drained, seconds):
                raise RuntimeError(f"{completions.count() - skip} of {drained} jobs ran within {seconds} s")
            idem = completions.rate([each for each in completions.read(skip) if each.number in keys])
            time.sleep(2)
            found = scene.latencies(calls, 10)
        return {
            "rows": before,
            "added_ms": added,
            "idem_per_s": idem,
            "p50_ms": quantile(found, 0.5),
            "p99_ms": quantile(found, 0.99),
        }


def _fill(scene: Scene, rows: int) -> None:
    from jobs.contrib.inspection.counts import paused
    from jobs.contrib.pauses import pauses

    if WAITING in paused():
        return
    scene.empty()
    pauses.pause(WAITING)
    task = scene.task("noop")
    waiting = task.apply_async((1,), queue=WAITING)
    copy_finished(scene, rows)
    _copy(scene, waiting.id, rows)


def copy_finished(scene: Scene, rows: int, ago: str = "1 hour") -> None:
    """Run a job, and make so many copies of its row, which ended so long ago and earlier."""
    finished = scene.task("noop").delay(1)
    with scene.workers():
        if not scene.wait(1, 1):
            raise RuntimeError("the job that is copied did not run")
        deadline = time.monotonic() + 10
        while not scene.execute("SELECT 1 FROM jobs_job WHERE id = %s AND finished_at IS NOT NULL", [finished.id]):
            if time.monotonic() > deadline:
                raise RuntimeError("the job that is copied did not finish")
            time.sleep(0.05)
    bury(scene)
    _copy(scene, finished.id, rows, ago)


def bury(scene: Scene) -> None:
    """Else a worker waits for the turn of those that were killed here, until they are taken for dead."""
    scene.execute("UPDATE jobs_node SET dead_at = now() WHERE dead_at IS NULL")


def _copy(scene: Scene, key: str, rows: int, ago: str = "1 hour") -> None:
    columns = scene.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'jobs_job' "
        "AND is_generated = 'NEVER' AND is_identity = 'NO'"
    )
    values = []
    for name, kind in columns:
        if name == "id":
            values.append(_ID)
        else:
            values.append(f'one."{name}"' + (" - ago" if kind.startswith("timestamp") else ""))
    names = ", ".join(f'"{name}"' for name, _ in columns)
    scene.execute(_COPY.format(columns=names, values=", ".join(values), ago=ago), [rows, key, key])
