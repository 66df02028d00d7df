"""Hours under load and faults: samples of what each process, each table and the server hold, and whether any grows.

Growth is judged by the second half of each series, by Theil and Sen: of the slopes between all pairs of samples one
that is low enough, so that the true slope is above it with 19 chances in 20. One outlier, and a process that is slow to
fill its caches, count for nothing.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from pathlib import Path

from django.db import connection

from jobs.models import tables
from tests.faults.worker import Worker

#: Fewer samples of a process, or of a table, say nothing.
LEAST = 8

#: What may be added in the second half of a series: a part of its median, and what noise adds, by its kind.
PART = 0.10
NOISE = {"memory": 3 * 2**20, "files": 3.0, "connections": 3.0, "bytes": 2 * 2**20, "rows": 300.0}

#: What holds less than that is left out of the report.
EMPTY = {"bytes": 2.0**18, "rows": 10.0}

#: Tables that grow by design, and why.
GROWS = {
    "jobs_batch": "ended batches are kept for a week",
    "jobs_stored_result": "results of groups are kept for a day (result_expires)",
    "jobs_effect": "the ledger of external calls is never pruned",
    "jobs_node": "dead nodes are kept for a week",
    "jobs_statistic": "a row for each minute and task, for as long as the pages show minutes",
}


@dataclass(frozen=True)
class Series:
    """One thing over time; ``kind`` is a key of :data:`NOISE`."""

    name: str
    kind: str
    #: Seconds since the begin, and the value.
    points: tuple[tuple[float, float], ...]

    @property
    def second_half(self) -> list[tuple[float, float]]:
        middle = (self.points[0][0] + self.points[-1][0]) / 2
        return [point for point in self.points if point[0] >= middle]

    @property
    def median(self) -> float:
        return statistics.median(value for _, value in self.second_half)

    @property
    def growth(self) -> float:
        """What the second half has surely added: its time times the lower bound of its slope."""
        half = self.second_half
        # Of many samples every n-th: pairs are their square.
        half = half[:: max(1, len(half) // 100)]
        slopes = sorted((b - a) / (at - since) for (since, a), (at, b) in combinations(half, 2) if at > since)
        if not slopes:
            return 0.0
        # By the variance of Kendall's tau; 1.645 leaves one chance in twenty.
        n = len(half)
        spread = 1.645 * sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return slopes[max(0, int((len(slopes) - spread) / 2))] * (half[-1][0] - half[0][0])

    @property
    def grows(self) -> bool:
        return len(self.points) >= LEAST and self.growth > PART * abs(self.median) + NOISE[self.kind]


class Samples:
    def __init__(self) -> None:
        self._points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)

    def add(self, at: float, kind: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._points[kind, name].append((at, value))

    def series(self) -> Iterator[Series]:
        for (kind, name), points in sorted(self._points.items()):
            yield Series(name, kind, tuple(points))

    def growing(self) -> list[Series]:
        return [each for each in self.series() if each.name not in GROWS and each.grows]


def processes(workers: Iterable[Worker]) -> dict[str, int]:
    """The processes of the workers, by what they are and their id."""
    found = {}
    for worker in workers:
        pids = worker.pids()
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parent = int(fields[1])
            is_main, is_child = pid == worker.process.pid, parent == worker.process.pid
            children = {int(each) for each in _children(pid)}
            role = "main" if is_main else "supervisor" if not is_child else "watchdog" if children else "child"
            found[f"{role} {pid}"] = pid
    return found


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def sample(samples: Samples, at: float, workers: Iterable[Worker]) -> None:
    """Look at everything once."""
    memory, files = {}, {}
    for name, pid in processes(workers).items():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            memory[name] = 1024 * float(status.partition("RssAnon:")[2].split()[0])
            files[name] = float(len(os.listdir(f"/proc/{pid}/fd")))
        except (FileNotFoundError, ProcessLookupError, IndexError):
            continue
    samples.add(at, "memory", memory)
    samples.add(at, "files", files)
    names = sorted(model._meta.db_table for model in tables())
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        samples.add(at, "connections", {"connections": cursor.fetchone()[0]})
        cursor.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r'",
            [names],
        )
        samples.add(at, "bytes", dict(cursor.fetchall()))
        rows = {}
        for name in names:
            cursor.execute(f"SELECT count(*) FROM {name}")
            rows[name] = cursor.fetchone()[0]
        samples.add(at, "rows", rows)


def table(samples: Samples) -> str:
    """For the report: of the processes of each role the one that adds most, and each table that holds something."""
    rows: dict[tuple[str, str], Series] = {}
    for each in samples.series():
        if len(each.points) < LEAST:
            continue
        key = each.kind, each.name.partition(" ")[0]
        if key not in rows or each.growth > rows[key].growth:
            rows[key] = each
    lines = ["| what | of | samples | median of the second half | surely added in it | |", "|---|---|--:|--:|--:|---|"]
    for (kind, role), each in rows.items():
        if each.median > EMPTY.get(kind, 0.0):
            says = GROWS.get(each.name) or ("**grows**" if each.grows else "")
            values = [_shown(value, kind) for value in (each.median, max(0.0, each.growth))]
            lines.append(f"| {kind} | {role} | {len(each.points)} | {' | '.join(values)} | {says} |")
    return "\n".join(lines)


def _shown(value: float, kind: str) -> str:
    return f"{value / 2**20:,.1f} MiB" if kind in ("memory", "bytes") else f"{value:,.0f}"
