"""Hours with all features on, and faults from a seed: nothing grows, and nothing is lost or done twice.

    JOBS_SOAK_SECONDS=3600 pytest tests/faults/test_soak.py --faults=soak -n 0

Give it ten minutes at least: what is kept for a minute fills up first. ``JOBS_TEST_SEED`` repeats the faults;
``JOBS_SOAK_REPORT`` names a file for the report.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import chain, shared_task
from django.db import Error, connection, transaction

import jobs
from jobs.contrib.verify.verify import verify
from jobs.events import event, handler
from jobs.models import ENDED, Job
from tests.faults import soak
from tests.faults.worker import Worker
from tests.helpers.servers import wait_for
from tests.models import Effect, Order

#: What grows by being kept is kept for a minute or two, so that it stops growing.
KEPT = {
    "RETENTION": 60.0,
    "RETENTION_FAILED": 60.0,
    "MARKER_RETENTION": 60.0,
    "RETENTION_EVENTS": 60.0,
    "RETENTION_SIGNALS": 60.0,
    "PRUNE_INTERVAL": 5.0,
}

#: Workers, calls in a second, seconds between two faults and between two looks.
WORKERS, PACE, FAULT, LOOK = 2, 25.0, 20.0, 5.0

#: While so many jobs wait, nothing is called: the machine is busy.
BACKLOG = 300

LEAK = "JOBS_SOAK_LEAK"
_leaked: list[bytes] = []


def _note(key: str) -> str:
    Effect.objects.create(key=key, pid=os.getpid())
    if os.environ.get(LEAK):
        _leaked.append(os.urandom(1 << 18))
    return key


@shared_task
def plain(key):
    return _note(key)


@shared_task(grouped=True)
def grouped(key):
    _note(key)


@shared_task(concurrency=2, rate="50/s")
def limited(key):
    _note(key)


@shared_task(fair_key="{customer}")
def fair(key, customer):
    _note(key)


@shared_task(idempotency_key="soak:{key}")
def once(key):
    return _note(key)


@shared_task(lock="soak:{name}")
def alone(key, name):
    _note(key)


@shared_task(bind=True, autoretry_for=(ConnectionError,), max_retries=5, default_retry_delay=1)
def again(self, key):
    if self.request.retries == 0:
        raise ConnectionError("not yet")
    _note(key)


@shared_task(bind=True)
async def awaits(self, key):
    await asyncio.sleep(0.1)
    return self.commit(_note, key)


@shared_task(bind=True, durable=True)
def durable(self, key):
    self.step("first", _note, key)
    self.sleep(1)
    self.wait_for(f"soak:{key}", timeout=5)
    self.progress(1, 2)


@shared_task(bind=True, atomic=False, on_ambiguous="retry")
def outside(self, key):
    with jobs.effect("soak", key) as call:
        if not call.done:
            call.answered({"key": key})
    with transaction.atomic():
        if not Effect.objects.filter(key=key).exists():
            _note(key)


@shared_task(every=2)
def ticks():
    return None


@event("soak.happened", order_key="{customer}")
def happened(key: str, customer: str) -> None:
    pass


@handler("soak.happened")
def handle(key: str) -> None:
    _note(key)


def _chained(key: str) -> Any:
    return chain(plain.si(key), grouped.si(f"{key}-2")).apply_async()


def _batch(key: str) -> Any:
    with jobs.batch(key, on_success=plain.si(f"{key}-end")):
        for number in range(3):
            plain.delay(f"{key}-{number}")


def _tell(key: str) -> None:
    happened(key, f"customer-{random.randrange(20)}")


def _durable(key: str) -> None:
    durable.delay(key)
    if random.random() < 0.5:
        jobs.signal(f"soak:{key}", 1)


#: How each kind is called, and the keys under which its effects stand.
CALLS: dict[str, tuple[Callable[[str], Any], Callable[[str], list[str]]]] = {
    "plain": (lambda key: plain.delay(key), lambda key: [key]),
    "grouped": (lambda key: grouped.delay(key), lambda key: [key]),
    "limited": (lambda key: limited.delay(key), lambda key: [key]),
    "fair": (lambda key: fair.delay(key, f"customer-{random.randrange(20)}"), lambda key: [key]),
    "once": (lambda key: [once.delay(key), once.delay(key)], lambda key: [key]),
    "alone": (lambda key: alone.delay(key, str(random.randrange(5))), lambda key: [key]),
    "again": (lambda key: again.delay(key), lambda key: [key]),
    "awaits": (lambda key: awaits.delay(key), lambda key: [key]),
    "durable": (_durable, lambda key: [key]),
    "outside": (lambda key: outside.delay(key), lambda key: [key]),
    "chain": (_chained, lambda key: [key, f"{key}-2"]),
    "batch": (_batch, lambda key: [f"{key}-{each}" for each in (0, 1, 2, "end")]),
    "event": (_tell, lambda key: [key]),
}


class Soak:
    """Workers under load, and under faults from a seed, which are looked at all the time."""

    def __init__(self, database: Any, seed: int, **env: str) -> None:
        self._database, self._env = database, env
        self.random = random.Random(seed)
        self.seed = seed
        self.samples = soak.Samples()
        self.faults: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._workers: list[Worker] = []

    def run(self, seconds: float, with_faults: bool = True) -> None:
        """Work for so long, and until all that was called has ended."""
        kinds = itertools.cycle(CALLS)
        with ExitStack() as stack:
            start = lambda: stack.enter_context(Worker(wait=False, **self._env))  # noqa: E731
            self._workers = [start() for _ in range(WORKERS)]
            wait_for(lambda: all(" ready." in each.text() for each in self._workers), 60, "the workers are up")
            began = time.monotonic()
            look_at, fault_at = 0.0, FAULT
            while (at := time.monotonic() - began) < seconds:
                try:
                    if at >= look_at:
                        look_at = at + LOOK
                        soak.sample(self.samples, at, self._workers)
                        is_full = Job.objects.exclude(state__in=ENDED).count() > BACKLOG
                    if with_faults and at >= fault_at:
                        fault_at = at + FAULT * self.random.uniform(0.5, 1.5)
                        self._break(start)
                    if not is_full:
                        self._call(next(kinds))
                except Error:
                    connection.close()
                time.sleep(1 / PACE)
            self.seconds = time.monotonic() - began
            wait_for(self._has_ended, 120, "all has ended")
            self.wrong = self._compare()

    def _call(self, kind: str) -> None:
        call, _ = CALLS[kind]
        key = f"{kind}-{uuid.uuid4()}"
        try:
            with transaction.atomic():
                call(key)
                Order.objects.create(key=key, job=uuid.uuid4())
        finally:
            # Whether it was committed, the orders say.
            self.calls[kind] += 1

    def _break(self, start: Callable[[], Worker]) -> None:
        kind = self.random.choice(["child", "supervisor", "worker", "pause", "connections", "server", "stop"])
        # The first one is never killed: its processes are watched for the whole time.
        number = self.random.randrange(0 if kind in ("pause", "connections", "server") else 1, WORKERS)
        worker = self._workers[number]
        if " ready." not in worker.text():
            return
        self.faults[kind] += 1
        match kind:
            case "child":
                self.random.choice(worker.children).kill()
            case "supervisor":
                worker.supervisor.kill()
            case "worker" | "stop":
                worker.kill() if kind == "worker" else worker.stop()
                self._workers[number] = start()
            case "pause":
                worker.pause()
                time.sleep(self.random.uniform(1, 6))
                worker.resume()
            case "connections":
                self._database.end_connections()
            case "server":
                self._database.kill()
                time.sleep(self.random.uniform(0, 3))
                self._database.start()

    def _has_ended(self) -> bool:
        rows = Job.objects.exclude(state__in=ENDED).exclude(task__endswith=".ticks")
        return not rows.exists() and not self._missing()

    def _keys(self) -> list[str]:
        orders = Order.objects.values_list("key", flat=True)
        return [key for order in orders for key in CALLS[order.partition("-")[0]][1](order)]

    def _missing(self) -> set[str]:
        return set(self._keys()) - set(Effect.objects.values_list("key", flat=True))

    def _compare(self) -> dict[str, Any]:
        keys, effects = set(self._keys()), Counter(Effect.objects.values_list("key", flat=True))
        found = {
            "lost": sorted(keys - effects.keys())[:10],
            "of nothing": sorted(effects.keys() - keys)[:10],
            # A task with atomic=False does it at least once.
            "twice": sorted(key for key, count in effects.items() if count > 1 and "outside" not in key)[:10],
            "verify": [(each.says, *each.examples) for each in verify().findings if each.violations],
        }
        return {what: which for what, which in found.items() if which}

    def report(self) -> str:
        growing = [f"{each.kind} of {each.name}" for each in self.samples.growing()]
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "none"
        return "\n".join(
            [
                f"{datetime.date.today()}: {self.seconds / 60:.0f} minutes, seed {self.seed}, {WORKERS} workers, "
                f"{sum(self.calls.values()):,} calls of {len(self.calls)} kinds, {Effect.objects.count():,} effects.",
                "",
                f"Faults: {faults}.",
                "",
                f"Lost, done twice, or broken: {self.wrong or 'nothing'}. Growing: {', '.join(growing) or 'nothing'}.",
                "",
                soak.table(self.samples),
                "",
            ]
        )


@pytest.mark.soak
@pytest.mark.brokers("jobs")
@pytest.mark.timeout(0)
def test_nothing_grows_in_hours_under_load_and_faults(database, broker, settings):
    """All features, and a fault every few seconds.

    Guard: what is old is pruned; each process gives back what it took.
    """
    settings.JOBS = {**settings.JOBS, **KEPT}
    seed = int(os.environ.get("JOBS_TEST_SEED") or random.randrange(10**6))
    run = Soak(database, seed)
    run.run(float(os.environ.get("JOBS_SOAK_SECONDS") or 3600))
    text = run.report()
    print(text)  # noqa: T201
    if file := os.environ.get("JOBS_SOAK_REPORT"):
        Path(file).write_text(text)
    assert not run.wrong, run.wrong
    assert not run.samples.growing(), text


@pytest.mark.soak
@pytest.mark.brokers("jobs")
@pytest.mark.slow
def test_a_leak_is_noticed(database, broker, settings):
    """A body keeps 256 kB of each run, and nothing else is wrong.

    Guard: the soak's own judgement of what grows.
    """
    settings.JOBS = {**settings.JOBS, **KEPT}
    run = Soak(database, 1, **{LEAK: "1"})
    run.run(60, with_faults=False)
    growing = {(each.kind, each.name.partition(" ")[0]) for each in run.samples.growing()}
    assert ("memory", "child") in growing, run.report()
    assert not run.wrong, run.wrong
