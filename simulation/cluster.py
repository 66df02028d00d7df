"""The cluster: nodes, callers and one server; what is counted, and whether the promise was kept."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import psycopg
from django.db import Error, connection, transaction
from django.db.models import Count

from jobs import signals
from jobs.contrib.verify.verify import verify
from jobs.models import ENDED, LIVE, Job
from jobs.store.sessions import Session
from simulation.backend.base import server
from simulation.faults import Faults
from simulation.models import Effect, Order
from simulation.node import Node, counts
from simulation.tasks import MIX
from simulation.world import Process, world
from tests.helpers.servers import family

#: Seconds between two cleanings of the tables. PostgreSQL's own would come at times of its own.
VACUUM = 60.0

#: Seconds for the nodes to come up before anything is counted, and for the last jobs to end after the faults.
START, DRAIN = 4.0, 900.0

#: Of a hundred callers' transactions so many roll back.
ROLLED_BACK = 5


class _RollBack(Exception):
    pass


class Cluster:
    """
    Parameters:
        postgres: the server (``tests.helpers.servers.Postgres``), with the database at ``url``.
        rate: jobs that are called in a second, for each node.
        length: of a body, in seconds, on average.
        kinds, often: what happens to it, and how many times as often as usual (``faults.RATES``).
        until_idle: go on without calls and faults until all jobs have ended. Else what still waits is not judged.
    """

    def __init__(
        self,
        postgres: Any,
        url: str,
        *,
        nodes: int,
        processes: int,
        rate: float,
        length: float,
        kinds: tuple[str, ...],
        often: float,
        until_idle: bool,
    ) -> None:
        self._postgres, self._url = postgres, url
        self.size, self._processes = nodes, processes
        self._rate, self._length, self._until_idle = rate, length, until_idle
        self.faults = Faults(self, kinds, often)
        self.nodes: list[Node] = []
        self._names = 0
        #: Seconds of a CPU that the server had used before its last restart.
        self._cpu_before = 0.0
        self._is_draining = False
        #: When the process of a run died, by the job and its lease; and how long it took until somebody gave it back.
        self._died: dict[tuple[Any, int], float] = {}
        self.rescues: list[float] = []

    def run(self, hours: float) -> dict[str, Any]:
        notify = Session.notify

        def note(*given: Any) -> None:
            notify(*given)
            server.has_notified = True

        Session.notify = note
        signals.rescued.connect(self._rescued, weak=False)
        server.start(self._url)
        for _ in range(self.size):
            self._add()
        for _ in range(max(1, self.size // 10)):
            Process("caller").start(self._call)
        self._vacuum()
        world.run(START)
        return self._measure(3600 * hours)

    def _measure(self, seconds: float) -> dict[str, Any]:
        self._ask("SELECT pg_stat_statements_reset()")
        before = Counter(counts) + Counter({"notified": server.notifications, "heard": server.heard})
        began, cpu, own = perf_counter(), self._cpu(), resource.getrusage(resource.RUSAGE_SELF)
        self.faults.begin()
        world.run(START + seconds)
        spent = perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_SELF)
        found: dict[str, Any] = {
            "nodes": self.size,
            "processes": self.size * self._processes,
            "seconds": seconds,
            "speed": round(seconds / spent, 1),
            "server_cpu": round((self._cpu() - cpu) / seconds, 4),
            "own_cpu": round((used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime) / seconds, 4),
            "connections": server.most_open,
            "woken": round((counts["woken"] - before["woken"]) / seconds, 2),
            "notified": round((server.notifications - before["notified"]) / seconds, 2),
            "heard": round((server.heard - before["heard"]) / seconds, 2),
            **self._statements(seconds),
        }
        if self._until_idle:
            self._drain()
        return {**found, **self._outcome()}

    def _drain(self) -> None:
        """No more calls, no more faults: what is left has to end."""
        self._is_draining = True
        self.faults.end()
        end = world.now + DRAIN
        while world.now < end:
            world.run(world.now + 5)
            if server.is_up and not self._ask("SELECT 1 FROM jobs_job WHERE finished_at IS NULL LIMIT 1"):
                break

    def _outcome(self) -> dict[str, Any]:
        orders = set(Order.objects.values_list("job", flat=True))
        states = dict(Job.objects.values_list("pk", "state"))
        done = dict(Effect.objects.values_list("job").annotate(Count("pk")))
        is_over = {*ENDED} if self._until_idle else {*ENDED, *LIVE}
        good = {*LIVE, "failed", "cancelled"}
        rows = Job.objects.order_by("pk").values_list(
            "pk", "task", "state", "lease", "crashes", "node_losses", "retries", "finished_at"
        )
        digest = hashlib.sha256(repr(list(rows)).encode()).hexdigest()[:16]
        report = verify(everything=True, patient=False)
        return {
            "jobs": len(states),
            "committed": len(orders),
            "lost": sum(key not in states or (states[key] not in good and key not in done) for key in orders),
            "failed": sum(state == "failed" for state in states.values()),
            "twice": sum(count > 1 for count in done.values()),
            "of_nothing": len(done.keys() - states.keys()),
            "open": sum(state not in is_over for state in states.values()),
            "rules_broken": {each.rule: each.violations for each in report.findings if each.violations},
            "rescues": len(self.rescues),
            "longest_rescue": round(max(self.rescues, default=0.0), 1),
            "median_rescue": round(statistics.median(self.rescues), 1) if self.rescues else 0.0,
            "faults": dict(sorted(self.faults.done.items())),
            "failures": world.failures,
            "digest": digest,
        }

    # The nodes

    def _add(self) -> None:
        self._names += 1
        self.nodes.append(Node(f"node-{self._names}", self._processes, self._replace))

    def _replace(self, node: Node) -> None:
        if node in self.nodes:
            self.nodes.remove(node)
            world.at(world.now + world.random.uniform(1, 10), self._add)

    def note_deaths(self, node: Node, processes: Iterable[Process]) -> None:
        for process in processes:
            for run in node.occupied(process):
                self._died[run] = world.now

    def _rescued(self, job: Any, **kwargs: Any) -> None:
        at = self._died.pop((job.pk, job.lease), None)
        if at is not None:
            self.rescues.append(world.now - at)

    # The callers

    def _call(self) -> None:
        rate = self._rate * self.size / max(1, self.size // 10)
        tasks, weights = [task for task, _ in MIX], [weight for _, weight in MIX]
        while not self._is_draining:
            world.wait(world.random.expovariate(rate))
            try:
                with transaction.atomic():
                    [task] = world.random.choices(tasks, weights)
                    result = task.delay(world.random.expovariate(1 / self._length))
                    Order.objects.create(job=result.id)
                    if world.random.randrange(100) < ROLLED_BACK:
                        raise _RollBack
            except _RollBack:
                pass
            except Error:
                connection.close()

    # The server

    def fail_over(self, seconds: float) -> None:
        """The server goes down and comes back, with a clock of its own. It is a restart: no commit is lost."""
        server.fail()
        self._cpu_before = self._cpu()
        process = self._postgres.process
        os.kill(process.pid, signal.SIGINT)
        process.wait()
        self._postgres.start()
        world.database_ahead += world.random.uniform(-2, 2)

        def back() -> None:
            server.start(self._url)
            server.is_up = True

        world.at(world.now + seconds, back)

    def _vacuum(self) -> None:
        world.at(world.now + VACUUM, self._vacuum)
        if server.is_up:
            self._ask("VACUUM ANALYZE")

    def _ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as raw:
            found = raw.execute(sql)
            return found.fetchall() if found.description else []

    def _statements(self, seconds: float) -> dict[str, Any]:
        """Statements in a second, without those that are the simulation's own, and which of them take most."""
        rows = self._ask(
            "SELECT query, calls, rows, total_exec_time FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid "
            "WHERE d.datname = current_database() AND query !~* '^(set jobs.now|vacuum|select pg_|select [$]1$)' "
            "ORDER BY total_exec_time DESC"
        )
        if not rows:
            return {"statements": 0.0, "server_ms": 0.0, "most": []}
        most = [
            {
                "calls": round(calls / seconds, 2),
                "rows": round(count / max(1, calls), 1),
                "ms": round(took / seconds, 3),
                "query": " ".join(query.split())[:160],
            }
            for query, calls, count, took in rows[:12]
        ]
        return {
            "statements": round(sum(calls for _, calls, *_ in rows) / seconds, 1),
            "server_ms": round(sum(took for *_, took in rows) / seconds, 2),
            "most": most,
        }

    def _cpu(self) -> float:
        """Seconds of a CPU that the server's processes have used, those that ended included."""
        ticks = 0
        for pid in family(self._postgres.process.pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # user and system; of the first one, those of its children that ended.
            ticks += sum(map(int, fields[11:15] if pid == self._postgres.process.pid else fields[11:13]))
        return self._cpu_before + ticks / os.sysconf("SC_CLK_TCK")
