"""What a team or its DBA may have set: the same scenes, of all that a worker does, under each of it."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, shared_task

from tests import tasks
from tests.faults.guards import guard
from tests.faults.ledger import LOST_WORKER, WORK, Ledger
from tests.faults.premises import Setting
from tests.faults.worker import Worker
from tests.gates import once_only, wait_for_file
from tests.harness import in_body
from tests.models import Effect, Order

#: PostgreSQL's levels, as psycopg counts them.
REPEATABLE_READ, SERIALIZABLE = 3, 4

#: What a strict DBA allows a session.
STRICT = "; ".join(
    f"ALTER ROLE {{role}} SET {name} = '2s'"
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
)
#: A role that has the rights of the owner of the tables.
MEMBER = "GRANT {owner} TO {role}"

#: Each also with the worker that is paused: another one ends its sessions, and with them its locks.
SETTINGS = {
    "pool": Setting({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}}),
    "small pool": Setting({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": {"min_size": 1, "max_size": 2, "timeout": 5}}}),
    "server-side binding": Setting({"OPTIONS": {"server_side_binding": True}}),
    "repeatable read": Setting({"OPTIONS": {"isolation_level": REPEATABLE_READ}}),
    "serializable": Setting({"OPTIONS": {"isolation_level": SERIALIZABLE}}),
    "repeatable read by role": Setting(
        logins=("ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'",)
    ),
    "serializable by role": Setting(logins=("ALTER ROLE {role} SET default_transaction_isolation = 'serializable'",)),
    "schema": Setting({"OPTIONS": {"options": "-c search_path=team"}}, schema=True),
    "schema by role": Setting(logins=("ALTER ROLE {role} SET search_path = team",), schema=True),
    "plain role": Setting(logins=("ALTER ROLE {role} NOCREATEDB NOCREATEROLE",)),
    "roles that may end sessions": Setting(logins=(f"{MEMBER}; GRANT pg_signal_backend TO {{role}}",) * 2),
    "assume role": Setting({"OPTIONS": {"assume_role": "{owner}"}}, logins=(MEMBER, MEMBER)),
    "strict timeouts": Setting(logins=(STRICT,)),
    "no kept connection": Setting({"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}),
}


@contextmanager
def place(directory: str, name: str, places: int = 1) -> Iterator[None]:
    """One of some places, in which nobody else is; else the body fails."""
    for number in range(places):
        with open(f"{directory}/{name}{number}", "w") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
            return
    raise AssertionError(f"more than {places} at once")


@shared_task(concurrency=2)
def limited(key, directory):
    with place(directory, "limited", 2):
        Effect.objects.create(key=key, pid=os.getpid())
        time.sleep(0.05)


@shared_task(lock="the only one")
def locked(key, directory):
    with place(directory, "locked"):
        Effect.objects.create(key=key, pid=os.getpid())
        time.sleep(0.05)


@shared_task
def holds(key, started, gate):
    """The first run holds a row until the gate is there; the second one wants the same row."""
    Order.objects.select_for_update().get(key=key)
    Effect.objects.create(key=key, pid=os.getpid())
    if once_only(started):
        wait_for_file(gate)
        Effect.objects.first()


class Scenes:
    """Kill, retry, chain, chord, limit and lock, for workers that are up, or about to be."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self.ledger, self.directory, self._count = ledger, directory, 0

    def enqueue(self) -> None:
        """All of them but the death of a worker, and 300 more jobs."""
        self._count += 1
        note, where = self._note, str(self.directory)
        note(tasks.kills_once, str(self.directory / f"killed {self._count}"))
        note(tasks.retries, 2)
        for _ in range(8):
            note(limited, where)
        for _ in range(4):
            note(locked, where)
        steps = [self._key() for _ in range(3)]
        last = chain(tasks.effect.si(key) for key in steps).apply_async()
        parts, body = [self._key() for _ in range(5)], self._key()
        end = chord([tasks.effect.si(key) for key in parts], tasks.gather.s(body)).apply_async()
        ids = [last.parent.parent, last.parent, last, *end.parent, end]
        for key, result in zip([*steps, *parts, body], ids, strict=True):
            self.ledger.note(key, result)
        self.ledger.enqueue(300)

    def _note(self, task: Any, *args: Any) -> None:
        key = self._key()
        self.ledger.note(key, task.delay(key, *args))

    def _key(self) -> str:
        return f"scene {self._count} {len(self.ledger.committed)} {time.monotonic_ns()}"

    def pause_one(self, crew: list[Worker]) -> None:
        """Suspended in mid-body with a row locked, and awake again when the other one has done its work."""
        started, gate = self.directory / "started", self.directory / "gate"
        Order.objects.create(key="held", job="00000000-0000-4000-8000-000000000000")
        job = holds.delay("held", str(started), str(gate))
        Order.objects.filter(key="held").update(job=job.id)
        pid = in_body(job.id, started)
        zombie = next(worker for worker in crew if pid in worker.pids())
        zombie.pause()
        self.ledger.enqueue(50)
        self.ledger.check(within=LOST_WORKER)
        gate.touch()
        zombie.resume()
        zombie.said(f"[{job.id}] was given to another run")
        self.ledger.enqueue(50)
        self.ledger.check(within=WORK)

    def kill_one(self, crew: list[Worker]) -> None:
        """SIGKILL to all processes of a worker under load."""
        with self.ledger.load(200):
            self.ledger.wait_effects(50)
            crew[0].kill()
        self.ledger.check(within=LOST_WORKER)


#: The last lines of the tracebacks that a scene is about.
ABOUT_SCENES = ("celery.exceptions.Retry: ", "billiard.exceptions.WorkerLostError", "jobs.errors.LostLease: ")


def assert_no_complaint(crew: list[Worker], *about: str) -> None:
    """No traceback but those that the scenes, and this fault, are about."""
    found = re.compile(r"^Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*(\S.*)$", re.M)
    lines = [line for worker in crew for line in found.findall(worker.text())]
    assert not [line for line in lines if not line.startswith((*ABOUT_SCENES, *about))]


@pytest.mark.brokers("jobs")
@pytest.mark.parametrize("setting", SETTINGS)
@guard("jobs.maintenance.zombies:end_backends", case="pool")
@guard("jobs.maintenance.rescue:rescue_all", case="pool")
def test_scenes_under(ledger, database, tmp_path, setting):
    """All that a worker does, under what was set.

    Guard: rescue ends the connections of dead runs, and gives their jobs back.
    """
    with SETTINGS[setting].hold(database) as [first, second]:
        scenes = Scenes(ledger, tmp_path)
        with Worker(wait=False, **first) as one, Worker(wait=False, **second) as other:
            scenes.enqueue()
            ledger.check(within=WORK + 5)
            scenes.pause_one([one, other])
            scenes.kill_one([one, other])
        assert_no_complaint([one, other])
