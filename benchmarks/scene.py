"""What a measurement has at hand: one peer and its servers, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import completions, processes
from benchmarks.peers import PEERS, Peer
from tests.helpers.servers import die_with_parent

#: After so many seconds without a completion nothing more is expected.
STALL = 15.0

#: A worker may take so many seconds until its first completion.
START = 30.0


class Scene:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.servers: dict[str, int] = json.loads(os.environ["BENCH_PIDS"])

    def empty(self) -> None:
        """Remove all jobs, users and completions, and let the database write everything to disk."""
        from benchmarks.peers.peer import truncate
        from benchmarks.project.models import User

        self.peer.purge()
        truncate([User._meta.db_table])
        completions.path().unlink(missing_ok=True)
        self.finish()

    def finish(self) -> None:
        if self.peer.database == "postgres":
            self.execute("CHECKPOINT")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def users(self, number: int) -> list[int]:
        """Make so many users; return their keys."""
        from benchmarks.project.models import User

        rows = [User(email=f"user{each}@example.com") for each in range(number)]
        return [user.pk for user in User.objects.bulk_create(rows, batch_size=5000)]

    def task(self, body: str) -> Any:
        from benchmarks.project.tasks import TASKS

        return TASKS[body]

    def fill(self, body: str, number: int) -> list[int]:
        """Enqueue so many jobs, each for a user of its own; return the keys."""
        from django.db import transaction

        keys = self.users(number)
        for first in range(0, number, 10_000):
            with transaction.atomic():
                self.peer.bulk(self.task(body), keys[first : first + 10_000])
        self.finish()
        return keys

    def enqueue(self, body: str = "noop", number: int = 0) -> None:
        from django.db import transaction

        with transaction.atomic():
            self.peer.enqueue(self.task(body), number)

    @contextmanager
    def workers(self, number: int = 2) -> Iterator[list[int]]:
        """Run the peer's workers, with so many processes for bodies; they are killed at the end. Yields their pids."""
        with self.running(self.peer.workers(number)) as pids:
            yield pids

    @contextmanager
    def running(self, commands: Sequence[Sequence[str]], **environment: str) -> Iterator[list[int]]:
        """Run these commands; they are killed at the end. Yields their pids."""
        env = {**os.environ, **environment}
        started = [subprocess.Popen(die_with_parent(*each), stdout=2, env=env) for each in commands]
        try:
            yield [process.pid for process in started]
        finally:
            processes.kill()
            for process in started:
                process.wait()

    def wait(self, number: int, seconds: float) -> bool:
        """Wait until there are so many completions, or for so many seconds, counted from the first one."""
        began = changed = time.monotonic()
        known = first = completions.count()
        while known < number:
            now, count = time.monotonic(), completions.count()
            if known == first:
                began = now
            if count != known:
                known, changed = count, now
            if now - changed > (STALL if known > first else START) or now - began > seconds:
                return False
            time.sleep(0.02)
        return True

    def warm(self) -> None:
        """Wait until the workers have run a job."""
        known = completions.count()
        self.enqueue()
        if not self.wait(known + 1, 1):
            raise RuntimeError(f"the workers of {self.peer.name} ran nothing within {START:.0f} s")

    def server_cpu(self) -> dict[str, float]:
        return {name: processes.cpu_seconds([pid]) for name, pid in self.servers.items()}

    def latencies(self, number: int, seconds: float, gap: float = 0.03) -> list[float]:
        """The milliseconds from the end of COMMIT to the first line of the body, for one job after the other.

        Parameters:
            gap: the mean of the seconds between two calls.
        """
        from django.db import transaction

        from benchmarks.project.models import User

        found: list[float] = []
        began = time.monotonic()
        while len(found) < number and time.monotonic() - began < seconds:
            committed: list[int] = []
            known = completions.count()
            with transaction.atomic():
                user = User.objects.create(email="user@example.com")
                transaction.on_commit(lambda: committed.append(time.monotonic_ns()))  # noqa: B023
                self.peer.enqueue(self.task("noop"), user.pk)
            time.sleep(gap * random.uniform(0.5, 1.5))
            deadline = time.monotonic() + 5
            is_late = completions.count() <= known
            while completions.count() <= known and time.monotonic() < deadline:
                time.sleep(0.002)
            run = [each for each in completions.read(known) if each.number == user.pk]
            # A job that has not begun yet is as late as we have waited for it.
            at = run[0].at if run else time.monotonic_ns()
            found.append((at - committed[0]) / 1e6)
            if is_late:
                # Otherwise each call would meet a polling worker at the start of its pause.
                time.sleep(random.uniform(0.0, found[-1] / 1e3))
        return found


@contextmanager
def prepared() -> Iterator[Scene]:
    """Set up Django for the peer that the environment names."""
    import django

    django.setup()
    from django.conf import settings

    peer: Peer = settings.PEER
    assert peer == PEERS[os.environ["BENCH_PEER"]]
    import benchmarks.project.tasks  # noqa: F401

    with processes.adopting_orphans():
        try:
            yield Scene(peer)
        finally:
            processes.kill()


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
