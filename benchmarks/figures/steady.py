"""Whether the table stays as large as what is kept, at a steady rate."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: Seconds between two looks at the table, and how many call.
LOOK, CALLERS = 15.0, 4


class Steady(Figure):
    name = "steady"
    title = "Twenty minutes at a steady rate"
    about = (
        "300 idempotent jobs a second, each a call of its own, for 20 minutes, kept for 3 minutes after they ended; "
        "two processes. The table is looked at every 15 seconds; the last ten minutes count. It runs only if it is "
        "asked for: `--only steady --peers jobs-pruned`."
    )
    columns = (
        Column(key="calls_per_s", title="calls a second", digits=0),
        Column(key="done", title="jobs run"),
        Column(key="rows", title="most rows"),
        Column(key="oldest_s", title="oldest row that has ended, s", digits=0, better="less"),
        Column(key="late_s", title="oldest that waits, s", digits=1, better="less"),
        Column(key="growth", title="most MB, last five minutes to the five before", digits=2, better="less"),
    )
    goals = (
        Goal(
            figure="steady",
            key="oldest_s",
            peer="jobs-pruned",
            most=300.0,
            unit="s",
            says="300 jobs a second, kept for 3 minutes: oldest row",
        ),
    )
    peers = ()
    more_peers = ("jobs-pruned",)
    parts = ({"rate": 300, "minutes": 20},)
    rounds = 1
    timeout = 1500.0

    def measure(self, scene: Scene, rate: int = 0, minutes: float = 0, **options: Any) -> dict[str, float | None]:
        from django.db import connection

        scene.empty()
        users = scene.users(1000)
        with scene.workers():
            scene.warm()
            calls, looks, began = [0] * CALLERS, [], time.monotonic()

            def call(caller: int) -> None:
                while (now := time.monotonic() - began) < 60 * minutes:
                    if calls[caller] < now * rate / CALLERS:
                        scene.enqueue("idem", users[calls[caller] % len(users)])
                        calls[caller] += 1
                    else:
                        time.sleep(0.005)
                connection.close()

            callers = [threading.Thread(target=call, args=(caller,), daemon=True) for caller in range(CALLERS)]
            for caller in callers:
                caller.start()
            while any(caller.is_alive() for caller in callers):
                time.sleep(LOOK)
                looks.append(self._look(scene))
                sys.stderr.write(f"{time.monotonic() - began:.0f} s: {looks[-1]}\n")
            lasted = time.monotonic() - began
        half, quarter = looks[len(looks) // 2 :], len(looks) // 4
        return {
            "calls_per_s": sum(calls) / lasted,
            "done": sum(calls) - looks[-1]["waiting"],
            "rows": max(look["rows"] for look in half),
            "oldest_s": max(look["oldest_s"] for look in half),
            "late_s": max(look["late_s"] for look in half),
            "growth": max(look["mb"] for look in half[quarter:]) / max(look["mb"] for look in half[:quarter]),
        }

    def _look(self, scene: Scene) -> dict[str, float]:
        [[rows, waiting, oldest, late, size]] = scene.execute(
            """
            SELECT count(*), count(*) FILTER (WHERE finished_at IS NULL),
                COALESCE(extract(epoch FROM now() - min(finished_at)), 0),
                COALESCE(extract(epoch FROM now() - min(run_at) FILTER (WHERE state = 'ready')), 0),
                pg_total_relation_size('jobs_job')
            FROM jobs_job
            """
        )
        found = {"rows": rows, "waiting": waiting, "oldest_s": oldest, "late_s": late, "mb": size / 2**20}
        return {key: round(float(value), 1) for key, value in found.items()}
