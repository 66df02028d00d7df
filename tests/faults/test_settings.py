"""What a team or its DBA may have set: the same scenes, of all that a worker does, under each of it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, shared_task
from django.core.management import call_command
from django.db import connection

from jobs.conf import conf
from jobs.models import Job, Node
from jobs.models.fields import uuid7
from tests import tasks
from tests.conftest import not_installed
from tests.faults.database import AWAY, use
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, LOST_WORKER, WORK, Ledger
from tests.faults.manner import again
from tests.faults.premises import Disk, OnDisk, Setting, Standby, Wired
from tests.faults.worker import Worker
from tests.helpers.gates import once_only, wait_for_file
from tests.helpers.harness import in_body
from tests.helpers.servers import Missing, Postgres, wait_for
from tests.models import Effect, Order

#: PostgreSQL's levels, as psycopg counts them.
REPEATABLE_READ, SERIALIZABLE = 3, 4

#: What a strict DBA allows a session: for less than from one beat to the next it may be idle.
STRICT = """
ALTER ROLE {role} SET statement_timeout = '2s'; ALTER ROLE {role} SET lock_timeout = '2s';
ALTER ROLE {role} SET idle_in_transaction_session_timeout = '2s'; ALTER ROLE {role} SET idle_session_timeout = '300ms'
"""
#: A role that has the rights of the owner of the tables.
MEMBER = "GRANT {owner} TO {role}"


def level(name: str, **more: Any) -> Setting:
    return Setting(proof=f"current_setting('transaction_isolation') = '{name}'", **more)


def isolated(name: str) -> tuple[str]:
    return (f"ALTER ROLE {{role}} SET default_transaction_isolation = '{name}'",)


#: Each also with a worker that is paused: another one ends its sessions, and with them its locks.
SETTINGS = {
    "pool": Setting({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}}),
    "small pool": Setting({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": {"min_size": 1, "max_size": 2, "timeout": 5}}}),
    "server-side binding": Setting({"OPTIONS": {"server_side_binding": True}}),
    "repeatable read": level("repeatable read", config={"OPTIONS": {"isolation_level": REPEATABLE_READ}}),
    "serializable": level("serializable", config={"OPTIONS": {"isolation_level": SERIALIZABLE}}),
    "repeatable read by role": level("repeatable read", logins=isolated("repeatable read")),
    "serializable by role": level("serializable", logins=isolated("serializable")),
    "schema": Setting({"OPTIONS": {"options": "-c search_path=team"}}, schema=True, proof="current_schema() = 'team'"),
    "schema by role": Setting(
        logins=("ALTER ROLE {role} SET search_path = team",), schema=True, proof="current_schema() = 'team'"
    ),
    "plain role": Setting(
        logins=("ALTER ROLE {role} NOCREATEDB NOCREATEROLE",),
        proof="NOT rolsuper FROM pg_roles WHERE rolname = current_user",
    ),
    "roles that may end sessions": Setting(
        logins=(f"{MEMBER}; GRANT pg_signal_backend, pg_read_all_stats TO {{role}}",) * 2,
        proof="current_user NOT LIKE '%owner'",
    ),
    "assume role": Setting(
        {"OPTIONS": {"assume_role": "{owner}"}}, logins=(MEMBER,), proof="current_user <> session_user"
    ),
    "strict timeouts": Setting(
        logins=(STRICT,), proof="current_setting('idle_session_timeout') = '300ms'", callers_too=False
    ),
}
#: Those for every push.
QUICK = ("pool", "plain role")
#: The same by another way.
AGAIN = ("repeatable read", "repeatable read by role", "serializable by role", "schema by role")
UNKEPT = Setting({"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True})


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


@shared_task(max_retries=1)
def says_how_to_retry(key):
    """Work that finds room for some rows, and not for others."""
    for _ in range(5):
        time.sleep(0.01)
        Order.objects.filter(key=key).update(key=key)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task
def proves(key, what):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {what}")
        assert cursor.fetchone()[0], what
    Effect.objects.create(key=key, pid=os.getpid())


class Scenes:
    """Kill, retry, chain, chord, limit and lock, for two workers that are up, or about to be."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self.ledger, self.directory, self._count = ledger, directory, 0

    def run(self) -> None:
        self.enqueue()
        self.ledger.check(within=LOST_CHILD)

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
        # The id first: above READ COMMITTED a change of the row that the body has locked would run it again.
        key = uuid7()
        Order.objects.create(key="held", job=key)
        job = holds.apply_async(("held", str(started), str(gate)), task_id=str(key))
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
        """SIGKILL to all processes of a worker in the middle of bodies."""
        self.ledger.enqueue(20, tasks.lingers, kwargs={"seconds": 0.3})
        held = Job.objects.filter(state="running", node__pid=crew[0].process.pid)
        wait_for(held.exists, WORK, "it is at work", step=0.01)
        crew[0].kill()
        self.ledger.check(within=LOST_WORKER)


#: The last lines of the tracebacks that the scenes are about.
ABOUT_SCENES = ("celery.exceptions.Retry: ", "billiard.exceptions.WorkerLostError", "jobs.errors.LostLease: ")

#: As a traceback ends.
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*(\S.*)$", re.M)


@contextmanager
def crew_of(envs: Sequence[dict[str, str]], *about: str, by: Sequence[str] = ()) -> Iterator[list[Worker]]:
    """Two workers. They say no traceback but those that the scenes are about, and this fault.

    Parameters:
        about: how the last lines of these tracebacks begin.
        by: what starts the first one.
    """
    with Worker(wait=False, by=by, **envs[0]) as one, Worker(wait=False, **envs[1]) as other:
        yield [one, other]
        lines = [line for worker in (one, other) for line in TRACEBACK.findall(worker.text())]
        assert not [line for line in lines if not line.startswith((*ABOUT_SCENES, *about))]


@pytest.mark.brokers("jobs")
@pytest.mark.parametrize(
    "setting",
    [
        again(name) if name in AGAIN else pytest.param(name, marks=[pytest.mark.quick] if name in QUICK else [])
        for name in SETTINGS
    ],
)
@guard("jobs.contrib.sessions.zombies:end_backends", case="pool")
@guard("jobs.maintenance.rescue:rescue_all", case="pool")
def test_scenes_under(ledger, database, tmp_path, setting):
    """All that a worker does, under what was set.

    Guard: rescue ends the connections of dead runs, and gives their jobs back.
    """
    held = SETTINGS[setting]
    with held.hold(database) as envs, crew_of(envs) as crew:
        ledger.note("proof", proves.delay("proof", held.proof))
        scenes = Scenes(ledger, tmp_path)
        scenes.run()
        scenes.pause_one(crew)
        scenes.kill_one(crew)


@pytest.mark.brokers("jobs")
@guard("jobs.maintenance.rescue:rescue_all")
def test_scenes_with_roles_that_may_end_no_session(ledger, database, tmp_path):
    """Each worker has its own. A machine that is paused or cut off keeps its locks until the server notices.

    Guard: rescue gives back the jobs of dead nodes.
    """
    with Setting(logins=(MEMBER, MEMBER)).hold(database) as envs, crew_of(envs) as crew:
        scenes = Scenes(ledger, tmp_path)
        scenes.run()
        scenes.kill_one(crew)


@pytest.mark.brokers("jobs")
@pytest.mark.databases("postgres", "sqlite")
@guard("jobs.maintenance.rescue:rescue_all")
def test_scenes_without_kept_connections(ledger, database, tmp_path):
    """``CONN_MAX_AGE = 0``, with health checks.

    Guard: rescue gives back the jobs of dead nodes.
    """
    with UNKEPT.hold(database) as envs, crew_of(envs) as crew:
        scenes = Scenes(ledger, tmp_path)
        scenes.run()
        scenes.kill_one(crew)


@pytest.fixture
def own(request):
    """Make servers that only this scenario uses, if this machine can."""

    def make(kind: Any, *args: Any) -> Any:
        try:
            made = kind(*args)
        except Missing as exc:
            not_installed(str(exc))
        request.addfinalizer(made.stop)
        return made

    return make


@contextmanager
def migrated(url: str) -> Iterator[None]:
    """This process is pointed at a new database, which has its tables."""
    with use(url):
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield


#: Seconds for which a wire is cut.
CUT = 45

#: What a worker says who finds no room.
FULL = re.compile("No space left|is full")

#: What drivers and servers say whose link was lost.
LOST_LINK = (
    *("psycopg.", "django.db.utils.OperationalError: ", "django.db.utils.InterfaceError: "),
    # Celery's consumer tries more than five times in a second to reach a broker that is in this database.
    "billiard.exceptions.RestartFreqExceeded: ",
)


@pytest.mark.long
@pytest.mark.brokers("jobs")
@guard("jobs.maintenance.rescue:rescue_all")
def test_scenes_over_a_standby_that_is_promoted(ledger, own, tmp_path):
    """``HOST`` names both servers. The primary is killed under load, with what is claimed only in its memory.

    Guard: rescue gives back the jobs of dead nodes.
    """
    primary = own(Postgres)
    url = primary.create_database("own")
    with migrated(url):
        standby = own(Standby, primary)
        servers = {"HOST": "127.0.0.1,127.0.0.1", "PORT": f"{primary.port},{standby.port}", "USER": "jobs"}
        both = servers | {"OPTIONS": {"target_session_attrs": "read-write"}}
        env = {"DATABASE_URL": url, "JOBS_TEST_DATABASE": json.dumps(both)}
        with use(url, **both), crew_of([env, env], *LOST_LINK) as crew:
            scenes = Scenes(ledger, tmp_path)
            scenes.run()
            scenes.enqueue()
            with ledger.load(200, forgive=AWAY):
                ledger.wait_effects(50)
                primary.kill()
                connection.close()
                standby.promote()
                ledger.wait_effects(50)
            ledger.check(within=LOST_CHILD)
            scenes.kill_one(crew)


@pytest.mark.long
@pytest.mark.brokers("jobs")
@pytest.mark.parametrize("disk", ["of the tables", "of the server", "of the file"])
@guard(Without("jobs.store.databases:is_full", "False"), case="tables")
@guard(Without("jobs.store.databases:is_full", "False"), case="file")
def test_scenes_on_a_disk_that_was_full(ledger, own, tmp_path, disk):
    """Of a tablespace, or of an SQLite file: what is written fails. Of all: the server may end, until there is room.

    Guard: a body that found no room is handed back, and did not fail.
    """
    small = own(Disk, 200)
    server = None if disk == "of the file" else own(OnDisk, small) if disk == "of the server" else own(Postgres)
    if disk == "of the tables":
        server.execute(f"CREATE TABLESPACE small LOCATION '{small.directory}/data'")
        server.execute("ALTER DATABASE template1 SET TABLESPACE small")
    url = server.create_database("own") if server else f"sqlite:///{small.directory}/data/own.sqlite3"
    with migrated(url), crew_of([{}, {}], *LOST_LINK) as crew:
        scenes = Scenes(ledger, tmp_path)
        scenes.run()
        ledger.enqueue(600, says_how_to_retry)
        small.fill()
        try:
            with ledger.load(200, forgive=AWAY):
                wait_for(lambda: any(FULL.search(each.text()) for each in crew), 60, "a worker finds no room")
                time.sleep(conf().DEAD_AFTER)
                small.free()
                if server is not None and not server.is_running:
                    server.start()
        finally:
            connection.close()
        scenes.enqueue()
        ledger.check(within=3 * WORK)
        scenes.kill_one(crew)


@pytest.mark.long
@pytest.mark.brokers("jobs")
@guard("jobs.contrib.sessions.links:_watch_from_the_server")
@guard("jobs.maintenance.rescue:rescue_all")
def test_scenes_over_a_wire_that_was_cut(ledger, own, tmp_path):
    """For 45 s each packet between one worker and the server is dropped. Both ends let go of their connections.

    Guard: the server looks whether the other end is there, also where it has an answer under way; rescue gives back the
    jobs of dead nodes.
    """
    server = own(Wired)
    url = server.create_database("own")
    with migrated(url):
        far = {"DATABASE_URL": url.replace("127.0.0.1", server.address)}
        with crew_of([far, {}], *LOST_LINK, by=("ip", "netns", "exec", server.namespace)) as crew:
            scenes = Scenes(ledger, tmp_path)
            scenes.run()
            with ledger.load(200):
                ledger.wait_effects(50)
                server.cut()
            began = time.monotonic()
            ledger.check(within=LOST_WORKER)
            scenes.enqueue()
            ledger.check(within=LOST_WORKER)
            wait_for(lambda: not server.far_sessions(), CUT, "the server lets go")
            time.sleep(max(0.0, began + CUT - time.monotonic()))
            server.mend()
            wait_for(lambda: Node.objects.filter(pid=crew[0].process.pid, dead_at=None).exists(), 30, "it is back")
            scenes.kill_one(crew[::-1])
