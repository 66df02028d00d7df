"""The books of a scenario: what was committed, and whether the promise was kept."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import Error, connection, transaction
from django.db.models import Count, Max

from jobs.conf import conf
from jobs.contrib.verify.verify import verify
from jobs.models import ENDED, Job
from tests import tasks
from tests.helpers.servers import wait_for
from tests.models import Effect, Order

#: Each scenario commits at least so many jobs with an effect.
LEAST = 300

#: The bounds of recovery, in seconds, from the end of the fault: what users are told, for the clocks in force, and on
#: top the time that a busy machine takes for the jobs themselves.
WORK = 20.0
LOST_CHILD = 5.0 + WORK
LOST_WORKER = 2 * conf().DEAD_AFTER + WORK

#: Jobs that the load of a scenario enqueues in a second.
PACE = 100

#: What a caller waits at most, in seconds, and the usual one, on a busy machine; whatever the broker does.
HELD_UP = 2.0
USUAL = 0.3


class _RollBack(Exception):
    pass


class Ledger:
    """Enqueues jobs in transactions together with business rows, and compares them with the effects.

    The business rows (``Order``) are the truth: a job must have run if and only if its order is there. So it does not
    matter whether a caller was killed, or never heard the answer of its COMMIT.
    """

    def __init__(self) -> None:
        #: Keys whose COMMIT was answered.
        self.committed: list[str] = []
        #: How long each transaction took its caller, in seconds.
        self.waits: list[float] = []
        self.recovered: float | None = None
        #: What a scene of the bounds measured, for the table of docs/howto/deploy.md.
        self.measured = ""
        self._numbers = itertools.count()
        self._transactions = itertools.count()

    def enqueue(
        self, jobs: int = LEAST, task: Any = tasks.effect, pace: float | None = None, **options: Any
    ) -> list[str]:
        """Commit ``jobs`` calls of ``task(key)``, 1 to 9 in a transaction; some transactions roll back.

        Parameters:
            pace: at most so many in a second.
        """
        keys: list[str] = []
        while len(keys) < jobs:
            done = self._transaction(task, options)
            if pace:
                time.sleep(len(done) / pace)
            keys += done
        return keys

    def note(self, key: str, result: Any) -> None:
        """Take a job into the books that the scenario enqueued itself."""
        Order.objects.create(key=key, job=result.id)
        self.committed.append(key)

    @contextmanager
    def load(self, jobs: int = LEAST, forgive: tuple[type[Exception], ...] = (), pace: float = PACE) -> Iterator[None]:
        """Callers that go on enqueueing in the background, until the block ends and ``jobs`` were committed.

        No exception may reach them from a broker in trouble; ``forgive`` those of a database that is.
        """
        ends, failures = threading.Event(), []
        until = len(self.committed) + jobs

        def run() -> None:
            try:
                while not ends.is_set() or len(self.committed) < until:
                    try:
                        keys = self._transaction(tasks.effect, {})
                    except forgive:
                        connection.close()
                        keys = []
                    time.sleep(max(1, len(keys)) / pace)
            except Exception as exc:
                failures.append(exc)
            finally:
                connection.close()

        thread = threading.Thread(target=run, name="load", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(120)
        assert not thread.is_alive(), "the callers are held up"
        assert not failures, f"a caller met {failures[0]!r}"

    def wait_committed(self, more: int = 50) -> None:
        """Wait until the callers of the load have committed so many more jobs."""
        enough = len(self.committed) + more
        wait_for(lambda: len(self.committed) >= enough, 60, f"{more} more jobs committed")

    def wait_effects(self, more: int = 50, in_all: int | None = None) -> None:
        """Wait until the workers have committed so many more effects: they are in the middle of their work.

        Parameters:
            in_all: so many, with those that were there already.
        """
        enough = Effect.objects.count() + more if in_all is None else in_all
        wait_for(lambda: Effect.objects.count() >= enough, 60, f"{enough} effects")

    def measure(self, bound: float, action: Callable[[], Any]) -> None:
        """Hold the seconds that ``action`` takes against a bound that users are told."""
        began = time.monotonic()
        action()
        seconds = time.monotonic() - began
        self.measured = f"{seconds:.1f} s"
        assert seconds < bound, f"{seconds:.1f} s, and not {bound:g} s"

    def callers_were_served(self) -> None:
        """No caller was held up."""
        assert max(self.waits) < HELD_UP, f"a caller waited for {max(self.waits):.1f} s"
        assert statistics.median(self.waits) < USUAL, [round(wait, 1) for wait in self.waits]

    def check(
        self,
        within: float,
        otherwise: Mapping[str, str] | None = None,
        perhaps_cancelled: Collection[str] = (),
        pruned: bool = False,
    ) -> None:
        """Wait until nothing is under way, and hold what is there against the promise.

        Parameters:
            within: the seconds that recovery may take, from now.
            otherwise: keys that end in another state than ``succeeded``, without an effect.
            perhaps_cancelled: keys that end ``cancelled`` without an effect, or ``succeeded`` with one.
            pruned: rows of jobs that succeeded may be gone.
        """
        began = time.monotonic()
        _patiently(lambda: not _stuck(), within, lambda: f"all jobs ended within {within} s: {_describe_stuck()}")
        self.recovered = max(self.recovered or 0.0, time.monotonic() - began)
        cancelled = Job.objects.filter(state="cancelled").values_list("pk", flat=True)
        keys = set(Order.objects.filter(job__in=list(cancelled)).values_list("key", flat=True))
        otherwise = dict.fromkeys(keys & set(perhaps_cancelled), "cancelled") | dict(otherwise or {})
        self._compare(otherwise, ("succeeded", None) if pruned else ("succeeded",))

    def longest_wait(self, keys: Collection[str] | None = None) -> float:
        """Seconds from the call to the run, of the job that waited longest; of those in ``keys``, or of all."""
        jobs = Order.objects.filter(key__in=self.committed if keys is None else keys).values_list("job", flat=True)
        ran = Job.objects.filter(pk__in=list(jobs)).only("started_at", "made_at")
        return max((job.started_at - job.created_at).total_seconds() for job in ran)

    def most_claims(self) -> int:
        """How often the job was claimed that was claimed most often."""
        return Job.objects.aggregate(most=Max("lease"))["most"]

    def _compare(self, otherwise: dict[str, str], good: tuple[str | None, ...]) -> None:
        orders = {str(job): key for key, job in Order.objects.values_list("key", "job")}
        keys = set(orders.values())
        states = {str(pk): state for pk, state in Job.objects.values_list("pk", "state")}
        effects = Counter(Effect.objects.values_list("key", flat=True))
        expected = {job: (otherwise[key],) if key in otherwise else good for job, key in orders.items()}
        broken: dict[str, set] = {
            "committed orders that are not there": set(self.committed) - keys,
            "lost": {key for key in keys - set(otherwise) if not effects[key]},
            "effects twice": {key for key, count in effects.items() if count > 1},
            "effects of what was rolled back": set(effects) - keys | set(effects) & set(otherwise),
            "jobs of what was rolled back": set(states) - set(orders),
            "in the wrong state": {
                (orders[job], states.get(job), *of) for job, of in expected.items() if states.get(job) not in of
            },
        }
        broken["verify"] = {
            (finding.says, finding.violations, *finding.examples) for finding in verify().findings if finding.violations
        }
        found = {what: sorted(which, key=str)[:10] for what, which in broken.items() if which}
        if broken["in the wrong state"]:
            found["errors, such as"] = list(Job.objects.filter(state="failed").values_list("error", "lease")[:2])
        assert not found, found
        assert len(keys) >= LEAST, f"{len(keys)} jobs are too few for a scenario"

    def _transaction(self, task: Any, options: dict[str, Any]) -> list[str]:
        number = next(self._transactions)
        keys = [f"{os.getpid()}-{next(self._numbers)}" for _ in range(1 + number % 9)]
        began = time.monotonic()
        try:
            with transaction.atomic():
                for key in keys:
                    Order.objects.create(key=key, job=task.apply_async((key,), **options).id)
                if number % 7 == 6:
                    raise _RollBack
        except _RollBack:
            return []
        self.waits.append(time.monotonic() - began)
        self.committed += keys
        return keys


def _stuck() -> int:
    return Job.objects.exclude(state__in=ENDED).count()


def _describe_stuck() -> str:
    rows = Job.objects.exclude(state__in=ENDED)
    counts = list(rows.values_list("state").annotate(Count("pk")))
    sample = rows.values_list("state", "lease", "run_at", "crashes", "node_losses", "error")[:5]
    return f"{counts}, such as {list(sample)}"


def _patiently(condition: Callable[[], bool], timeout: float, what: Callable[[], str]) -> None:
    """Wait, over a connection that the fault may have broken."""

    def holds() -> bool:
        try:
            return condition()
        except Error:
            connection.close()
            return False

    try:
        wait_for(holds, timeout, step=0.1)
    except AssertionError:
        raise AssertionError(f"in vain: {what()}") from None
