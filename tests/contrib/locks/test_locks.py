"""lock(): one holder at a time, on Redis and on the database, and what happens when holders or stores die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery, _state, shared_task
from django.core.cache import caches
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_redis import get_redis_connection

from jobs import Busy, lock
from jobs.conf import syncpoints
from jobs.contrib.pruning.prune import Prune
from jobs.contrib.waking import waking
from jobs.contrib.write_turns import turns
from jobs.lifecycle import run as runs
from jobs.models import Job, Lock, Node
from jobs.store import databases
from jobs.worker import pool
from tests import tasks
from tests.contrib.locks import tasks as own_tasks
from tests.helpers.concurrency import Elsewhere, by_default, open_transaction, somebody_waits
from tests.helpers.deliveries import deliver_fifty_times
from tests.helpers.harness import Worker, claim, deliver, effects, environment, in_body, wait_ended
from tests.helpers.locking import SHORT, elsewhere, is_held, take
from tests.helpers.rows import make
from tests.helpers.servers import wait_for
from tests.models import Effect, Imported

pytestmark = pytest.mark.django_db(transaction=True)


@contextlib.contextmanager
def held_elsewhere(*key):
    """Another thread holds the lock."""
    held, gate = threading.Event(), threading.Event()

    def hold():
        with lock(*key):
            held.set()
            gate.wait(30)

    thread = threading.Thread(target=elsewhere, args=(hold,))
    thread.start()
    assert held.wait(10)
    yield
    gate.set()
    thread.join()


@contextlib.contextmanager
def running(job=None, lease=1):
    """As in the body of a run of this job."""
    job = job or make("running", lease=lease)
    job.lease = lease
    Job.objects.filter(pk=job.pk).update(lease=lease)
    with as_run(job):
        yield job


@contextlib.contextmanager
def as_run(job):
    before = runs.current.set(SimpleNamespace(job=job, using="default", afterwards={}, task=tasks.noop))
    try:
        yield
    finally:
        runs.current.reset(before)


def forget_lock(key="a"):
    """As if its time were over, while its holder sleeps."""
    caches["default"].delete(f"jobs:lock:{key}")
    with databases.side() as side, side.cursor() as cursor:
        cursor.execute(f"UPDATE jobs_lock SET job = NULL, expires_at = {side.now}")


# One at a time


def test_two_holders_exclude_each_other(store):
    with lock("a"):
        busy = take()
        assert isinstance(busy, Busy)
        assert "'a'" in str(busy)
        assert "no job" in str(busy)
        assert isinstance(take("b"), int)
    assert isinstance(take(), int)


def test_the_busy_one_says_which_job_has_it(store):
    with running() as job, lock("a"):
        assert str(job.pk) in str(take())


def test_released_on_every_exit(store):
    with pytest.raises(ValueError, match="in the block"), lock("a"):
        raise ValueError("in the block")
    with pytest.raises(SystemExit), lock("a"):
        sys.exit()
    assert not is_held()


def test_release_leaves_a_successors_lock_alone(store):
    with contextlib.ExitStack() as successor:
        with lock("a"):
            forget_lock()
            successor.enter_context(held_elsewhere("a"))
        assert is_held()
    assert not is_held()


def test_renewed_as_long_as_the_block_runs(store):
    with lock("a", ttl=SHORT):
        deadline = time.monotonic() + 4 * SHORT
        while time.monotonic() < deadline:
            assert is_held()
            time.sleep(0.1)
    time.sleep(SHORT / 2)
    assert not is_held(), "no renewal after the release"


def test_a_holder_that_lost_its_lock_hears_of_it(store, caplog):
    with lock("a", ttl=SHORT):
        if store["CACHE_URL"]:
            get_redis_connection().set(caches["default"].make_key("jobs:lock:a"), f"/0/{uuid.uuid4().hex}")
        else:
            with databases.side() as side, side.cursor() as cursor:
                cursor.execute("UPDATE jobs_lock SET token = %s", [uuid.uuid4().hex])
        wait_for(lambda: "lock_lost" in [r.action for r in caplog.records], 5, "the warning")


def test_waits_for_another_holder(store):
    with lock("a"):
        began = time.monotonic()
        assert isinstance(take(wait=0.4), Busy)
        assert 0.4 <= time.monotonic() - began < 20
        waiting = threading.Thread(target=lambda: got.append(take(wait=20)))
        got = []
        waiting.start()
        time.sleep(0.3)
        assert got == []
    waiting.join(20)
    assert isinstance(got[0], int)


def test_a_block_that_would_wait_for_itself(store):
    again = pytest.raises(RuntimeError, match="'a' is held by a block around")
    with lock("a"), lock("b"), again, lock("a", wait=20):
        pass
    assert not is_held()


# The owner is the job and its lease


def test_the_next_run_of_a_job_takes_over_at_once(store):
    with running(lease=1) as job:
        with lock("a", ttl=60) as first:

            def next_run():
                with running(job, lease=2), lock("a", ttl=60) as token:
                    held.set()
                    gate.wait(20)
                    return token

            held, gate = threading.Event(), threading.Event()
            tokens = []
            thread = threading.Thread(target=lambda: tokens.append(elsewhere(next_run)))
            thread.start()
            assert held.wait(20), "waits for the dead one"
        # The zombie's release left it alone.
        assert is_held()
        zombie = Job.objects.get(pk=job.pk)
        zombie.lease = 1
        with as_run(zombie), pytest.raises(Busy), lock("a"):
            pass
        gate.set()
        thread.join()
    assert tokens[0] > first
    assert not is_held()


def test_another_job_does_not_take_over_from_one_that_runs(store):
    with running(), lock("a"):

        def other():
            with running(lease=7), lock("a"):
                pass

        assert isinstance(elsewhere(other), Busy)


@pytest.mark.database
def test_the_databases_lock_lasts_as_long_as_the_run(settings):
    settings.JOBS = {**settings.JOBS, "LOCK_CACHE": None}
    with running() as job:
        with lock("a", ttl=SHORT):
            assert "jobs-lock" not in {thread.name for thread in threading.enumerate()}, "nothing to renew"
            time.sleep(2 * SHORT)
            assert is_held()
            # Its worker died: another run has it, or it waits again.
            Job.objects.filter(pk=job.pk).update(lease=2)
            assert not is_held()
        Job.objects.filter(pk=job.pk).update(lease=1)
        with lock("b"):
            Job.objects.filter(pk=job.pk).update(state="ready")
            assert not is_held("b")


@pytest.mark.database
def test_the_databases_lock_is_no_part_of_the_transaction_around_it(settings):
    settings.JOBS = {**settings.JOBS, "LOCK_CACHE": None}
    with pytest.raises(ValueError, match="rolled back"), transaction.atomic():
        Effect.objects.create(key="x")
        with lock("a"):
            assert is_held(), "seen at once"
        assert not is_held(), "released at once"
        raise ValueError("rolled back")


@pytest.mark.database
def test_of_many_that_see_a_free_lock_one_gets_it(store):
    inside, most = [], []
    barrier = threading.Barrier(8)

    def contend():
        barrier.wait(20)
        try:
            with lock("a"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.05)
                inside.pop()
        except Busy:
            pass

    for _ in range(5):
        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(most) == 1


# Fencing tokens


def test_tokens_grow_with_every_holder(store):
    tokens = [take() for _ in range(5)]
    assert tokens == sorted(set(tokens))


def test_tokens_grow_although_the_clock_was_put_back(store, redis_server):
    take()
    ahead = time.time_ns() // 1000 + 3600 * 1_000_000
    redis_server.call("SET", str(caches["default"].make_key("jobs:fence")), ahead)
    with databases.side() as side, side.cursor() as cursor:
        cursor.execute("UPDATE jobs_lock SET fence = %s", [ahead])
    assert [take(), take()] == [ahead + 1, ahead + 2]


PAUSED = """
import sys, django
django.setup()
from pathlib import Path
from jobs import lock
from tests.models import Imported
from tests.helpers.gates import wait_for_file
with lock("a", ttl=0.6) as token:
    Path(sys.argv[1]).touch()
    wait_for_file(sys.argv[2])
    print(Imported.objects.filter(key="a", fence__lt=token).update(fence=token, note="first"))
"""


@pytest.mark.database
def test_a_body_with_an_older_snapshot_takes_no_lock_from_a_live_run(settings):
    """REPEATABLE READ: in its snapshot the holder does not run yet."""
    if connections["default"].vendor != "postgresql":
        pytest.skip("SQLite's transactions are serial")
    settings.JOBS = {**settings.JOBS, "LOCK_CACHE": None}
    holder = make("ready")
    began, held = threading.Event(), threading.Event()

    def body():
        with transaction.atomic(), connections["default"].cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert Job.objects.get(pk=holder.pk).state == "ready"
            began.set()
            assert held.wait(10)
            with lock("a"):
                pass

    older = Elsewhere(body)
    assert began.wait(10)
    node = Node.objects.create(hostname="here", pid=1)
    with running(claim(holder.pk, node.pk)), lock("a"):
        held.set()
        assert isinstance(older.result(), Busy)


@pytest.mark.database
def test_a_lock_on_a_server_whose_transactions_are_repeatable_read(settings, caplog):
    """Of two that find it free the second is refused by the database, and not only told that there is no such row."""
    if connections["default"].vendor != "postgresql":
        pytest.skip("SQLite's transactions are serial")
    settings.JOBS = {**settings.JOBS, "LOCK_CACHE": None}
    with lock("a"):
        pass

    def take():
        with lock("a"):
            pass

    def be_faster():
        Lock.objects.filter(key="a").update(token=uuid.uuid4())

    with by_default("repeatable read"), open_transaction(be_faster):
        slower = Elsewhere(take)
        wait_for(somebody_waits, 10, "the slower one waits")
    assert isinstance(slower.result(), Busy)
    assert not caplog.records


@contextlib.contextmanager
def another_holder(store, directory):
    """A process that holds the lock; it writes with its token when the file is there."""
    Imported.objects.create(key="a")
    started, gate = directory / "started", directory / "gate"
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(started), str(gate)],
        env=environment(**store),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(started.exists, 20, "the first one holds it")
        yield process, gate
    finally:
        process.kill()


@pytest.mark.slow
def test_a_holder_paused_past_its_ttl_writes_nothing(store, tmp_path):
    with another_holder(store, tmp_path) as (process, gate):
        assert is_held()
        process.send_signal(signal.SIGSTOP)
        with lock("a", ttl=SHORT, wait=10) as token:
            gate.touch()
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=20)[0] == "1\n", "it wrote, and nobody saw more than its own token"
            assert is_held(), "it released another one's lock"
            assert Imported.objects.filter(key="a", fence__lt=token).update(fence=token, note="second") == 1
    assert Imported.objects.get().note == "second"


@pytest.mark.slow
def test_a_write_that_comes_after_its_successors_changes_nothing(store, tmp_path):
    with another_holder(store, tmp_path) as (process, gate):
        process.send_signal(signal.SIGSTOP)
        with lock("a", ttl=SHORT, wait=10) as token:
            assert Imported.objects.filter(key="a", fence__lt=token).update(fence=token, note="second") == 1
        gate.touch()
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=20)[0] == "0\n"
    assert Imported.objects.get().note == "second"


# Forks


def test_a_forked_child_leaves_its_parents_lock_alone(store):
    connections.close_all()
    with lock("a"), lock("short", ttl=SHORT):
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            time.sleep(2 * SHORT)
            assert is_held()
            assert is_held("short"), "the parent renews it on"
    if not pid:
        # It left the block as well, and may take others.
        try:
            with lock("b", ttl=SHORT) as token:
                time.sleep(2 * SHORT)
                os._exit(0 if isinstance(token, int) and is_held("b") and is_held("a") else 3)
        finally:
            os._exit(4)
    assert not is_held()


# The store is away


@pytest.mark.database
def test_without_its_table_the_work_goes_on_with_a_warning(settings, caplog):
    settings.JOBS = {**settings.JOBS, "LOCK_CACHE": None}
    with databases.side() as side, side.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_lock RENAME COLUMN token TO gone")
    try:
        earlier = take()
        assert take() > earlier
    finally:
        with databases.side() as side, side.cursor() as cursor:
            cursor.execute("ALTER TABLE jobs_lock RENAME COLUMN gone TO token")
    assert {record.action for record in caplog.records} == {"lock_open", "lock_kept"}


# What is refused


@pytest.mark.parametrize(
    ("ttl", "error"), [(0.1, ValueError), (float("inf"), ValueError), (float("nan"), ValueError), ("30", TypeError)]
)
def test_a_ttl_that_is_too_short_is_refused_with_the_cure(ttl, error, monkeypatch):
    def body(x):
        pass

    with pytest.raises(error, match=r"lock\(\): ttl"):
        lock("a", ttl=ttl)
    if ttl == 0.1:
        with pytest.raises(ValueError, match=r"at least JOBS\['HEARTBEAT'\] \(0.5 s\).* Use 30"):
            lock("a", ttl=ttl)
    # The app made here does not share the tasks of other tests.
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    app = Celery("made", task_cls="jobs.task:Task", set_as_current=False, fixups=[])
    with pytest.raises(error, match="made.locked: lock_ttl"):
        app.task(name="made.locked", lock="a:{x}", lock_ttl=ttl)(body).delay  # noqa: B018
    if error is ValueError:
        app.task(name="made.free", lock_ttl=ttl)(body).delay  # noqa: B018


@pytest.mark.parametrize("wait", [-1, float("inf"), float("nan"), "3", True])
def test_a_wait_that_is_no_time_is_refused(wait):
    with pytest.raises(ValueError, match="wait"):
        lock("a", wait=wait)


def test_a_key_that_no_store_keeps_is_refused():
    for key in ("", "a\0", "x" * 256):
        with pytest.raises(ValueError, match=r"lock\(\): the key"):
            lock(key)
    with pytest.raises(TypeError, match="needs a key"):
        lock()
    with pytest.raises(ValueError, match="lock: the key .* 25[0-9] characters"):
        own_tasks.locked.delay("x" * 249)
    assert not Job.objects.exists()


def test_the_longest_key_is_kept(store):
    for key in ("x" * 255, "ключ:" + "é" * 250):
        with lock(key):
            assert is_held(key)


# lock= of a task


@pytest.mark.usefixtures("node")
def test_busy_comes_back_later_and_uses_no_attempt(store):
    result = own_tasks.locked.delay("a")
    with held_elsewhere("locked:a"):
        assert deliver(result)[0] == "IGNORED"
        job = Job.objects.get()
        assert (job.state, job.snoozes, job.retries, job.crashes, job.errors) == ("scheduled", 0, 0, 0, [])
        assert 4 < (job.run_at - timezone.now()).total_seconds() < 10, "for a holder that dies"
        assert (job.error["type"], "'locked:a'" in job.error["message"]) == ("Busy", True)
        assert not effects()
    assert deliver(result)[0] == "SUCCESS", "its release let it go on at once"
    assert int(Effect.objects.get().note) > 0


def let_try(*jobs) -> None:
    """As if their pause were over."""
    Job.objects.filter(pk__in=[job.id for job in jobs]).update(state="ready")


@pytest.mark.usefixtures("node")
def test_a_busy_lock_does_not_use_up_the_snoozes(store, settings):
    settings.JOBS = {**settings.JOBS, "MAX_SNOOZES": 2}
    result = own_tasks.locked.delay("a")
    with held_elsewhere("locked:a"):
        for _ in range(4):
            let_try(result)
            assert deliver(result)[0] == "IGNORED"
        assert (Job.objects.get().state, Job.objects.get().lease) == ("scheduled", 4)


@shared_task(lock="by:{key}")
def locked_by(name, key):
    """Of several jobs of one key each has a name."""


def ready() -> list[str]:
    return [job.args[0] for job in Job.objects.filter(state="ready")]


@pytest.mark.usefixtures("node")
def test_each_release_wakes_one_in_the_order_in_which_they_came(store):
    jobs = [locked_by.delay(name, "k") for name in "abcd"]
    other = locked_by.delay("other", "o")
    with held_elsewhere("by:k"), held_elsewhere("by:o"):
        for job in (*reversed(jobs), other):
            assert deliver(job)[0] == "IGNORED"
        assert ready() == []
    assert sorted(ready()) == ["a", "other"]
    for name, job in zip("abcd", jobs, strict=True):
        assert sorted(ready()) == sorted([name, "other"])
        assert deliver(job)[0] == "SUCCESS"
    assert ready() == ["other"]
    assert Counter(Job.objects.values_list("lease", flat=True)) == {2: 4, 1: 1}


@pytest.mark.usefixtures("node")
def test_a_lock_that_is_released_before_the_waiter_is_written_wakes_it_all_the_same(store, monkeypatch):
    """Race: the holder looks for those that wait, and there is none yet."""
    result = own_tasks.locked.delay("a")
    real = waking.wait_for
    with ExitStack() as held:
        held.enter_context(held_elsewhere("locked:a"))

        def wait(*args):
            held.close()
            assert Job.objects.get().state == "running"
            return real(*args)

        monkeypatch.setattr(waking, "wait_for", wait)
        assert deliver(result)[0] == "IGNORED"
    assert Job.objects.get().state == "ready"


@pytest.mark.usefixtures("node")
def test_a_job_without_a_lock_asks_for_nothing_more():
    with CaptureQueriesContext(connection) as queries:
        assert deliver(tasks.noop.delay())[0] == "SUCCESS"
    assert not [query for query in queries if "lock:" in query["sql"]]


@pytest.mark.usefixtures("node")
def test_a_lock_of_a_block_wakes_after_the_commit_around_it(store):
    result = own_tasks.locked.delay("a")
    with transaction.atomic():
        with lock("locked:a"):
            pass
        # As one that found it busy a moment ago.
        Job.objects.update(state="scheduled", waits_for="lock:locked:a", run_at=timezone.now() + timedelta(hours=1))
    assert Job.objects.get(pk=result.id).state == "ready"


@shared_task
def locks_and_fails():
    with lock("locked:a"):
        pass
    raise ValueError("after its release")


@pytest.mark.usefixtures("node")
def test_a_lock_of_a_body_that_rolls_back_wakes_all_the_same(store):
    result = own_tasks.locked.delay("a")
    Job.objects.update(state="scheduled", waits_for="lock:locked:a", run_at=timezone.now() + timedelta(hours=1))
    assert deliver(locks_and_fails.delay())[0] == "FAILURE"
    assert Job.objects.get(pk=result.id).state == "ready"


@shared_task(lock=lambda key: f"locked:{key}")
def locks_in_its_body(key):
    with lock("body", key):
        Effect.objects.create(key=key)


@pytest.mark.usefixtures("node")
def test_busy_in_a_body_rolls_back_and_comes_back(store):
    result = locks_in_its_body.delay("a")
    with held_elsewhere("body", "a"):
        assert deliver(result)[0] == "IGNORED"
        assert (Job.objects.get().state, Job.objects.get().retries, effects()) == ("scheduled", 0, {})
    assert deliver(result)[0] == "SUCCESS"
    assert effects() == {"a": 1}


@pytest.mark.usefixtures("node")
def test_held_until_the_run_is_committed(store):
    seen = {}
    syncpoints.arm(lambda point: seen.setdefault(point, is_held("locked:a")))
    assert deliver(own_tasks.locked.delay("a"))[0] == "SUCCESS"
    # On SQLite nobody else can ask the main file in between; the database's lock ends with the commit itself.
    assert seen["after_claim"] is False
    assert seen["before_commit"] is seen["after_completion"] is True
    if store["CACHE_URL"]:
        assert seen["after_commit"] is True
    assert not is_held("locked:a")


@pytest.mark.usefixtures("node")
def test_released_whatever_becomes_of_the_run(store, monkeypatch):
    for outcome in (ValueError("no"), Busy("no"), KeyboardInterrupt()):

        def body(key, outcome=outcome):
            raise outcome

        monkeypatch.setattr(own_tasks.locked, "run", body)
        result = own_tasks.locked.delay("a")
        with contextlib.suppress(type(outcome)):
            deliver(result)
        assert not is_held("locked:a")


@pytest.mark.usefixtures("node")
def test_a_key_that_cannot_be_made_fails_the_job():
    result = own_tasks.locked.delay("a")
    Job.objects.update(args=["x" * 300])
    assert deliver(result)[0] == "FAILURE"
    assert (Job.objects.get().state, Job.objects.get().error["type"]) == ("failed", "ValueError")


def test_a_plain_call_takes_no_lock(store):
    with lock("locked:a"):
        own_tasks.locked("a")
    assert Effect.objects.get().note == "None"


# Real workers


@shared_task(bind=True, atomic=False, lock="alone:{key}")
def alone(self, key, name, directory, seconds=0.05):
    """Leaves an effect of another name if somebody else of this key is inside."""
    inside = Path(directory, f"inside-{key}")
    try:
        inside.mkdir()
    except FileExistsError:
        Effect.objects.create(key=f"{name} was not alone")
    time.sleep(seconds)
    Effect.objects.create(key=name, pid=os.getpid(), note=str(self.lock_token))
    inside.rmdir()


@pytest.mark.slow
def test_ten_jobs_of_one_key_run_one_by_one_and_nobody_starves(store, tmp_path):
    with Worker(concurrency=4, **store):
        results = [alone.delay("k", f"n{n}", str(tmp_path)) for n in range(10)]
        rows = wait_ended(*[result.id for result in results], timeout=90)
    assert effects() == {f"n{n}": 1 for n in range(10)}
    assert {(row.state, row.retries, row.crashes, row.node_losses) for row in rows} == {("succeeded", 0, 0, 0)}
    assert sum(row.lease for row in rows) > len(rows), "some found it busy"
    assert max(row.snoozes for row in rows) == 0
    tokens = [int(note) for note in Effect.objects.order_by("pk").values_list("note", flat=True)]
    assert tokens == sorted(set(tokens))


@pytest.mark.slow
def test_the_job_of_a_killed_holder_continues_before_the_ttl(store, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(**store):
        began = time.monotonic()
        first = own_tasks.gated_alone.delay("k", "a", str(started), str(gate))
        pid = in_body(first.id, started)
        second = own_tasks.gated_alone.delay("k", "b", str(started), str(gate))
        wait_for(lambda: Job.objects.get(pk=second.id).waits_for, 20, "the second one waits")
        os.kill(pid, signal.SIGKILL)
        rows = wait_ended(first.id, second.id, timeout=40)
        assert time.monotonic() - began < 50, "the lock's TTL is 60 s"
    assert [(row.state, row.crashes) for row in rows] == [("succeeded", 1), ("succeeded", 0)]
    assert effects() == {"a": 1, "b": 1}


# Housekeeping


@pytest.mark.database
def test_locks_that_nobody_holds_are_forgotten_after_a_day(settings):
    settings.JOBS = {**settings.JOBS, "LOCK_CACHE": None}
    for key in ("old", "new"):
        take(key)
    with running() as job, lock("job"), databases.side() as side:

        def keys():
            with side.cursor() as cursor:
                cursor.execute("SELECT jobs_lock.key FROM jobs_lock ORDER BY 1")
                return [row[0] for row in cursor.fetchall()]

        with side.cursor() as cursor:
            cursor.execute(
                "UPDATE jobs_lock SET expires_at = expires_at - 90000 WHERE jobs_lock.key = 'old' OR job IS NOT NULL"
            )
        Prune().run_once()
        assert keys() == ["job", "new"]
        Job.objects.filter(pk=job.pk).update(lease=2)
        Prune().run_once()
        assert keys() == ["new"]


def test_a_lock_that_is_released_in_a_body_waits_for_no_turn_of_its_own(declare, monkeypatch, node):
    """On SQLite bodies take turns. The hook that wakes the next one runs after the commit, within this one's."""
    monkeypatch.setattr(turns, "_processes", pool.Lock())

    def body(key):
        with lock("in turn"):
            Effect.objects.create(key=key)

    assert deliver(declare(body=body).delay("a"))[0] == "SUCCESS"
    assert effects() == {"a": 1}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lock": "k:{user}"}, "'user'"),
        ({"lock": "k", "lock_ttl": "30"}, "lock_ttl='30' must be a number of seconds"),
        ({"lock_ttl": timedelta(seconds=30)}, r"\(of a timedelta: .total_seconds\(\)\)"),
    ],
)
def test_an_option_that_cannot_work_is_told_where_it_is_declared(declare, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        declare(**options)


def test_a_lock_is_no_option_of_a_call():
    with pytest.raises(TypeError, match="where it is declared"):
        tasks.effect.apply_async(("a",), lock="k")


@shared_task(idempotency_key="welcome:{user_id}", lock="user:{user_id}")
def welcomes_alone(user_id):
    Effect.objects.create(key=f"welcome:{user_id}", pid=os.getpid())
    return f"welcome {user_id}"


@pytest.mark.slow
@pytest.mark.wide
def test_twenty_processes_deliver_one_key_fifty_times_one_at_a_time(store):
    deliver_fifty_times(welcomes_alone, **store)
