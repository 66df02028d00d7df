"""The adapter: one process that enqueues, has a worker, and prints what both did, as the benchmark's contract says.

Its environment and its lines are those of ``CONTRIBUTING_ADAPTERS.md`` of
https://github.com/hardbyte/postgresql-job-queue-benchmarking. Standard output is telemetry, standard error the log.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

#: So many latencies are kept, and those of so many seconds are told of.
KEPT, WINDOW = 32768, 30.0

#: Seconds that the worker has to end.
GRACE = 4.0

#: What is seen of the whole queue: only the first replica tells it.
OF_ALL = ("queue_depth", "producer_target_rate")


def _number(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


class Adapter:
    def __init__(self) -> None:
        self._instance = int(_number("BENCH_INSTANCE_ID", 0))
        self._every = _number("SAMPLE_EVERY_S", 5)
        self._rate = _number("PRODUCER_RATE", 800)
        self._most = int(_number("PRODUCER_BATCH_MAX", 128))
        self._tick = _number("PRODUCER_BATCH_MS", 25) / 1000
        self._padding = "x" * int(_number("JOB_PAYLOAD_BYTES", 256))
        self._depth = 0
        self._enqueued = self._completed = 0
        #: When a job was begun, and after how many milliseconds.
        self._latencies: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._ends = threading.Event()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *given: self._ends.set())
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.public.settings")
        # First: the harness waits for it a minute, on however busy a machine. A warm-up is not counted.
        self._say(_descriptor())
        _migrate()
        if os.environ.get("SCENARIO") == "migrate_only":
            return 0
        directory = tempfile.mkdtemp(prefix="jobs-bench-")
        ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ears.bind(f"{directory}/socket")
        worker = self._start_worker(f"{directory}/socket")
        targets = [self._listen, self._produce, self._measure, self._tell]
        for target in targets:
            given = [ears] if target == self._listen else []
            threading.Thread(target=target, args=given, daemon=True).start()
        while not self._ends.wait(0.2) and worker.poll() is None:
            pass
        worker.terminate()
        try:
            worker.wait(GRACE)
        except subprocess.TimeoutExpired:
            worker.kill()
        return 0 if self._ends.is_set() else 1

    def _start_worker(self, place: str) -> subprocess.Popen[bytes]:
        from tests.helpers.servers import die_with_parent

        count = os.environ.get("WORKER_COUNT", "32")
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.public.tasks", "worker", "-l", "WARNING"]
        command += [
            "-c",
            count,
            "-n",
            f"replica-{self._instance}-{os.getpid()}",
            "--without-mingle",
            "--without-gossip",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JOBS_BENCH_SOCKET": place}
        return subprocess.Popen(
            die_with_parent(*command), env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr
        )

    # Its threads

    def _listen(self, ears: socket.socket) -> None:
        while True:
            text = ears.recv(64)
            self._completed += 1
            self._latencies.append((time.monotonic(), float(text)))

    def _produce(self) -> None:
        from django.db import Error, connection

        from benchmarks.public.tasks import work

        for count in self._turns():
            created = time.time()
            try:
                work.delay_many([(created, self._padding)] * count)
                self._enqueued += count
            except Error as exc:
                connection.close()
                sys.stderr.write(f"[jobs] not enqueued: {exc}\n")

    def _turns(self) -> Iterator[int]:
        """How many to enqueue, each time: as the harness says, or by the time that passed, or up to a depth."""
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            while not self._ends.wait(0.05):
                if count := min(self._most, max(0, int(_number("TARGET_DEPTH", 1000)) - self._depth)):
                    yield count
            return
        if os.environ.get("PRODUCER_PACING") == "harness":
            for line in sys.stdin:
                word, _, number = line.partition(" ")
                if word == "ENQUEUE":
                    yield int(number)
            return
        credit, since = 0.0, time.monotonic()
        while not self._ends.wait(self._tick):
            now = time.monotonic()
            credit, since = credit + self._current_rate() * (now - since), now
            while credit >= 1:
                count = min(self._most, int(credit))
                credit -= count
                yield count

    def _current_rate(self) -> float:
        try:
            return float(Path(os.environ["PRODUCER_RATE_CONTROL_FILE"]).read_text())
        except (KeyError, OSError, ValueError):
            return self._rate

    def _measure(self) -> None:
        from django.db import Error, connection

        while self._instance == 0 and not self._ends.wait(0.2):
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT count(*) FROM jobs_job WHERE state = 'ready'")
                    self._depth = cursor.fetchone()[0]
            except Error:
                connection.close()

    def _tell(self) -> None:
        # The first tick counts what came before it as well.
        before, since = (0, 0), time.monotonic()
        while not self._ends.wait(self._every - time.time() % self._every):
            now, counts = time.monotonic(), (self._enqueued, self._completed)
            # On a busy machine a tick comes late. Rates and their window stay the number of jobs.
            passed = now - since
            enqueued, completed = ((one - other) / passed for one, other in zip(counts, before, strict=True))
            before, since = counts, now
            seen = sorted(waited for at, waited in list(self._latencies) if at >= now - WINDOW)
            found = {f"claim_p{part}_ms": (_percentile(seen, part), WINDOW) for part in (50, 95, 99)}
            found |= {"enqueue_rate": (enqueued, passed), "completion_rate": (completed, passed)}
            found |= {"queue_depth": (self._depth, 0.0), "producer_target_rate": (self._current_rate(), 0.0)}
            for metric, (value, window) in found.items():
                if self._instance == 0 or metric not in OF_ALL:
                    about = {"kind": "adapter", "subject_kind": "adapter", "subject": "", "system": "jobs"}
                    self._say({"t": _now(), **about, "metric": metric, "value": float(value), "window_s": window})

    def _say(self, record: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({**record, "instance_id": self._instance}) + "\n")
        sys.stdout.flush()


def _migrate() -> None:
    """Replicas that start together take turns."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(20261126)")
        try:
            call_command("migrate", verbosity=0)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(20261126)")


def _descriptor() -> dict[str, Any]:
    from jobs import __version__

    manifest = json.loads((HERE / "adapter.json").read_text())
    kept = {name: manifest[name] for name in ("system", "event_tables", "extensions", "db_name")}
    return {"kind": "descriptor", **kept, "version": __version__, "schema_version": "1", "started_at": _now()}


def _percentile(values: list[float], part: int) -> float:
    return values[min(len(values) - 1, round(part / 100 * (len(values) - 1)))] if values else 0.0


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    sys.exit(Adapter().run())
