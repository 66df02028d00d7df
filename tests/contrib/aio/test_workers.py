"""Async bodies in real workers: many at once, limits, ends from outside, and deaths."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from importlib.util import find_spec  # noqa: F401
from pathlib import Path

import pytest
from celery import current_app, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.core.management import call_command
from django.db import connection, transaction

import jobs
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import is_alive
from jobs.models import Job
from tests.helpers.gates import wait_for_file
from tests.helpers.harness import Worker, effects, wait_ended, wait_reached, wait_state
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.database]


async def exists(path, timeout=60.0):
    async with asyncio.timeout(timeout):
        while not Path(path).exists():
            await asyncio.sleep(0.02)


def save(key, note=""):
    Effect.objects.create(key=key, pid=os.getpid(), note=note)


@shared_task(bind=True)
async def meets(self, key, directory, number):
    """All bodies are in at the same time, or none goes on."""
    Path(directory, key).touch()
    async with asyncio.timeout(30):
        while len(os.listdir(directory)) < number:
            await asyncio.sleep(0.02)
    return self.commit(save, key)


@shared_task(bind=True)
async def gated(self, key, directory):
    """Each run says that it has begun, and in which process, and waits for its gate."""
    Path(directory, f"{key}-{self.job.lease}").write_text(str(os.getpid()))
    await exists(f"{directory}/gate-{key}")
    return self.commit(save, key)


@shared_task(atomic=False)
def plain(key, started=None, gate=None):
    if started:
        Path(started).write_text(str(os.getpid()))
        wait_for_file(gate)
    save(key)


def begun(directory, key, lease=1) -> int:
    path = Path(directory, f"{key}-{lease}")
    return int(wait_for(lambda: path.exists() and path.read_text(), 30, f"{key} has begun"))


def let_go(directory, *keys) -> None:
    for key in keys:
        Path(directory, f"gate-{key}").touch()


def settings(**values) -> dict[str, str]:
    from django.conf import settings

    return {"JOBS_TEST_SETTINGS": json.dumps({**settings.JOBS, **values})}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_fifty_bodies_are_in_one_process_at_once(pool, tmp_path):
    results = meets.delay_many([(str(n), str(tmp_path), 50) for n in range(50)])
    with Worker("-P", pool, concurrency=1) as worker:
        jobs = wait_ended(*[result.id for result in results])
        assert worker.stop() == 0
    assert {(job.state, job.lease) for job in jobs} == {("succeeded", 1)}, worker.text()
    assert effects() == {str(n): 1 for n in range(50)}
    assert len(set(Effect.objects.values_list("pid", flat=True))) == 1


def test_two_workers_share_them_and_none_takes_more_than_it_has_places_for(tmp_path):
    """Each of the two runs ten at once: the bodies meet when both are full."""
    results = meets.delay_many([(str(n), str(tmp_path), 20) for n in range(20)])
    few = settings(ASYNC_CONCURRENCY=10)
    with Worker(concurrency=1, **few), Worker(concurrency=1, **few):
        jobs = wait_ended(*[result.id for result in results])
    assert {(job.state, job.lease) for job in jobs} == {("succeeded", 1)}
    assert effects() == {str(n): 1 for n in range(20)}
    pids = list(Effect.objects.values_list("pid", flat=True))
    assert [pids.count(pid) for pid in set(pids)] == [10, 10]


def test_neither_kind_of_body_keeps_the_other_from_running(tmp_path):
    with Worker(concurrency=1, **settings(ASYNC_CONCURRENCY=5)) as worker:
        blocks = plain.delay("plain", str(tmp_path / "started"), str(tmp_path / "gate"))
        wait_for((tmp_path / "started").exists, 20, f"the plain body: {worker.text()}")
        # The only process is in a plain body.
        held = [gated.delay(str(n), str(tmp_path)) for n in range(5)]
        pids = {begun(tmp_path, str(n)) for n in range(5)}
        assert pids == {int((tmp_path / "started").read_text())}
        (tmp_path / "gate").touch()
        wait_ended(blocks.id)
        # All places for async bodies are taken.
        wait_ended(plain.delay("after").id)
        let_go(tmp_path, *map(str, range(5)))
        wait_ended(*[result.id for result in held])


def test_a_queue_may_be_of_async_bodies_only(tmp_path):
    results = [gated.apply_async((str(n), str(tmp_path)), queue="mail") for n in range(3)]
    let_go(tmp_path, "0", "1", "2")
    with Worker("-Q", "mail", concurrency=1):
        wait_ended(*[result.id for result in results])


# Connections


on_postgresql = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the server counts its connections")


def count() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]


@on_postgresql
def test_a_process_with_many_bodies_has_three_connections_at_the_most(tmp_path):
    with Worker(concurrency=1):
        wait_ended(plain.delay("warm").id)
        before = count()
        results = [holds.delay(str(n), str(tmp_path)) for n in range(100)]
        for n in range(100):
            begun(tmp_path, str(n))
        # The process that runs plain bodies had one already.
        assert count() - before <= 2
        let_go(tmp_path, *map(str, range(100)))
        wait_ended(*[result.id for result in results])
        assert count() - before <= 2


@shared_task(bind=True)
async def looks_twice(self, key, directory):
    """A thousand of them ask the database when they begin and when they end, and hold nothing between."""
    await Effect.objects.acount()
    Path(directory, key).touch()
    async with asyncio.timeout(60):
        while not Path(directory, "gate").exists():
            await asyncio.sleep(1)
    await Effect.objects.acount()
    return self.commit(save, key)


@on_postgresql
def test_a_thousand_bodies_in_each_of_two_processes_need_three_connections_each(tmp_path):
    own = count()
    with Worker(concurrency=2, **settings(ASYNC_CONCURRENCY=1000)):
        results = looks_twice.delay_many([(str(n), str(tmp_path)) for n in range(2000)])
        wait_for(lambda: len(os.listdir(tmp_path)) == 2000, 60, "all have begun")
        # The supervisor has three of its own, and the broker of these tests is the database: two more.
        most = 2 * 3 + 3 + 2
        assert count() - own <= most
        (tmp_path / "gate").touch()
        wait_ended(*[result.id for result in results], timeout=60)
        assert count() - own <= most
    pids = list(Effect.objects.values_list("pid", flat=True))
    assert sorted(pids.count(pid) for pid in set(pids)) == [1000, 1000]


@shared_task(bind=True)
async def holds(self, key, directory):
    await Effect.objects.acount()
    Path(directory, f"{key}-{self.job.lease}").write_text(str(os.getpid()))
    await exists(f"{directory}/gate-{key}")
    await Effect.objects.acount()
    return self.commit(save, key)


# Time limits


@shared_task(bind=True, soft_time_limit=1)
async def heeds_soft_limit(self, key):
    try:
        await asyncio.sleep(60)
    except SoftTimeLimitExceeded:
        return self.commit(save, key)


@shared_task(soft_time_limit=1)
async def lets_soft_limit_pass():
    async with asyncio.timeout(60):
        await asyncio.gather(asyncio.sleep(60), asyncio.sleep(50))


def test_a_soft_limit_is_raised_where_the_coroutine_waits():
    with Worker(concurrency=1):
        heeds, passes = heeds_soft_limit.delay("a"), lets_soft_limit_pass.delay()
        heeds, passes = wait_ended(heeds.id, passes.id)
    assert (heeds.state, effects()) == ("succeeded", {"a": 1})
    assert (passes.state, passes.error["type"]) == ("failed", "SoftTimeLimitExceeded")


@shared_task(time_limit=1, autoretry_for=(Exception,))
async def is_over_its_limit(directory):
    try:
        await asyncio.sleep(60)
    finally:
        Path(directory, "cleaned").touch()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_hard_limit_cancels_one_body_and_no_process(pool, tmp_path):
    with Worker("-P", pool, concurrency=1):
        other = gated.delay("a", str(tmp_path))
        pid = begun(tmp_path, "a")
        [job] = wait_ended(is_over_its_limit.delay(str(tmp_path)).id)
        assert (job.state, job.error["type"], job.lease) == ("failed", "TimeLimitExceeded", 1)
        assert (tmp_path / "cleaned").exists()
        let_go(tmp_path, "a")
        [other] = wait_ended(other.id)
    assert (other.lease, Effect.objects.get().pid) == (1, pid)


@shared_task(time_limit=2)
async def blocks(directory):
    Path(directory, "blocks").touch()
    await asyncio.sleep(0)
    time.sleep(60)


def test_a_blocked_loop_is_named_and_replaced_and_its_neighbours_go_back_without_a_count(tmp_path):
    with Worker(concurrency=1) as worker:
        others = [gated.delay(str(n), str(tmp_path)) for n in range(3)]
        pids = {begun(tmp_path, str(n)) for n in range(3)}
        [job] = wait_ended(blocks.delay(str(tmp_path)).id)
        assert (job.state, job.error["type"], job.lease) == ("failed", "TimeLimitExceeded", 1)
        again = {begun(tmp_path, str(n), lease=2) for n in range(3)}
        let_go(tmp_path, "0", "1", "2")
        others = wait_ended(*[result.id for result in others])
        text = worker.text()
    assert not pids & again
    assert {(job.lease, job.crashes, job.node_losses) for job in others} == {(2, 0, 0)}
    assert effects() == {"0": 1, "1": 1, "2": 1}
    line = next(line for line in text.splitlines() if "the event loop is blocked for " in line)
    assert f"{blocks.name}[{job.pk}]" in line
    assert "test_workers.py:" in line
    assert " in blocks()" in line


@shared_task
async def blocks_for_a_while():
    await asyncio.sleep(0)
    time.sleep(2.5)


def test_a_loop_that_was_blocked_says_for_how_long():
    with Worker(concurrency=1) as worker:
        [job] = wait_ended(blocks_for_a_while.delay().id)
        line = wait_for(
            lambda: next(
                (each for each in worker.text().splitlines() if "the event loop was blocked for " in each), ""
            ),
            20,
            "it says so",
        )
    assert job.state == "succeeded"
    assert f"{blocks_for_a_while.name}[{job.pk}]" in line
    assert re.search(r"was blocked for [23]\.\d s", line)


@shared_task(time_limit=2)
async def blocks_at_once():
    time.sleep(60)


@shared_task(time_limit=2)
async def is_behind():
    return None


def test_who_waits_behind_a_blocked_loop_is_over_no_limit():
    with Worker(concurrency=1):
        with transaction.atomic():
            results = [blocks_at_once.delay(), *(is_behind.delay() for _ in range(8))]
        blocked, *others = wait_ended(*[result.id for result in results], timeout=40)
    assert (blocked.state, blocked.error["type"]) == ("failed", "TimeLimitExceeded")
    assert {(job.state, job.crashes, job.node_losses) for job in others} == {("succeeded", 0, 0)}
    assert 2 in {job.lease for job in others}, "they were claimed with it"


def saves_too_long(key):
    save(key)
    time.sleep(60)


@shared_task(bind=True, time_limit=2)
async def commits_too_long(self, key):
    return self.commit(saves_too_long, key)


def test_a_commit_that_takes_too_long_ends_with_its_process():
    with Worker(concurrency=1):
        job, other = wait_ended(commits_too_long.delay("a").id, is_behind.delay().id, timeout=40)
    assert (job.state, job.error["type"]) == ("failed", "TimeLimitExceeded")
    assert (other.state, other.crashes, effects()) == ("succeeded", 0, {})


# Ends from outside


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_cancelled_job_is_cancelled_where_it_waits(pool, tmp_path):
    with Worker("-P", pool, concurrency=1):
        other, result = gated.delay("a", str(tmp_path)), gated.delay("b", str(tmp_path))
        pid = begun(tmp_path, "a")
        begun(tmp_path, "b")
        transitions.ask_to_end(Job.objects.get(pk=result.id).pk, "default", why="not needed")
        [job] = wait_ended(result.id, timeout=5)
        assert (job.state, job.error["type"], job.error["message"]) == ("cancelled", "Cancelled", "not needed")
        let_go(tmp_path, "a")
        wait_ended(other.id)
    assert effects() == {"a": 1}
    assert Effect.objects.get().pid == pid


def test_a_killed_job_ends_and_its_process_goes_on(tmp_path):
    with Worker(concurrency=1) as worker:
        other, result = gated.delay("a", str(tmp_path)), notes_its_end.delay(str(tmp_path))
        pid = begun(tmp_path, "a")
        wait_for((tmp_path / "begun").exists, 20, "the body")
        call_command("jobs", "kill", result.id, "--why", "it hangs")
        wait_for((tmp_path / "ended").exists, 10, f"it is cancelled: {worker.text()}")
        job = Job.objects.get(pk=result.id)
        assert (job.state, job.error["type"]) == ("cancelled", "Killed")
        let_go(tmp_path, "a")
        wait_ended(other.id)
    assert Effect.objects.get().pid == pid


@shared_task(bind=True)
async def notes_its_end(self, directory):
    Path(directory, "begun").touch()
    try:
        await asyncio.sleep(60)
    finally:
        Path(directory, "ended").touch()


@shared_task(bind=True)
async def hears_nothing(self, directory):
    Path(directory, "begun").touch()
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def test_a_killed_job_that_swallows_its_end_takes_its_process_along(tmp_path):
    with Worker(concurrency=1):
        other, result = gated.delay("a", str(tmp_path)), hears_nothing.delay(str(tmp_path))
        pid = begun(tmp_path, "a")
        wait_for((tmp_path / "begun").exists, 20, "the body")
        call_command("jobs", "kill", result.id)
        wait_for(lambda: not is_alive(pid), 15, "the process is gone")
        let_go(tmp_path, "a")
        [other] = wait_ended(other.id)
    assert (other.lease, other.crashes, other.node_losses) == (2, 0, 0)
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.error["type"], job.lease) == ("cancelled", "Killed", 1)


def test_revoke_with_terminate_ends_one_body(tmp_path):
    with Worker(concurrency=1):
        other, result = gated.delay("a", str(tmp_path)), notes_its_end.delay(str(tmp_path))
        pid = begun(tmp_path, "a")
        wait_for((tmp_path / "begun").exists, 20, "the body")
        [active] = current_app.control.inspect(timeout=5).active().values()
        assert {each["name"] for each in active} == {gated.name, notes_its_end.name}
        current_app.control.revoke(result.id, terminate=True)
        [job] = wait_ended(result.id)
        assert (job.state, job.error["type"]) == ("cancelled", "Revoked")
        let_go(tmp_path, "a")
        wait_ended(other.id)
    assert Effect.objects.get().pid == pid


# Limits and locks, over both workers


@shared_task(bind=True, concurrency=2)
async def is_limited(self, key, directory):
    now = Path(directory, f"now-{key}")
    now.touch()
    beside = len(list(Path(directory).glob("now-*")))
    await asyncio.sleep(0.05)
    now.unlink()
    return self.commit(save, key, str(beside))


@shared_task(bind=True, lock="one at a time")
async def is_locked(self, key, directory):
    now = Path(directory, f"now-{key}")
    now.touch()
    beside = len(list(Path(directory).glob("now-*")))
    await asyncio.sleep(0.05)
    now.unlink()
    return self.commit(save, key, str(beside))


@pytest.mark.parametrize(("task", "most"), [(is_limited, 2), (is_locked, 1)], ids=["limit", "lock"])
def test_limits_and_locks_hold_for_them(task, most, tmp_path):
    results = [task.delay(str(n), str(tmp_path)) for n in range(8)]
    with Worker(concurrency=2), Worker(concurrency=1):
        wait_ended(*[result.id for result in results], timeout=60)
    assert effects() == {str(n): 1 for n in range(8)}
    assert max(map(int, Effect.objects.values_list("note", flat=True))) == most


# The ledger of external calls


@shared_task(bind=True)
async def pays(self, key, path):
    async with jobs.effect("charge", key) as call:
        if not call.done:
            with Path(path).open("a") as file:
                print(call.key, file=file)
            call.answered("paid")
    return self.commit(save, f"{key}:{call.answer}")


@pytest.mark.skipif("not find_spec('jobs.contrib.effects')", reason="the ledger is an extension")
@pytest.mark.parametrize(("point", "calls"), [("before_call", 1), ("after_call", 2), ("after_sent", 1)])
def test_a_process_that_is_killed_around_a_call_knows_of_it(point, calls, tmp_path):
    """Between the call and the commit of its answer nobody knows, and it is made again under the same key."""
    path = tmp_path / "called"
    with Worker(concurrency=1, sync=f"{point}=kill"):
        [job] = wait_ended(pays.delay("a", str(path)).id, timeout=60)
    assert (job.state, effects()) == ("succeeded", {"a:paid": 1})
    assert path.read_text().split() == ["charge:a"] * calls


# Deaths


@pytest.mark.parametrize("point", ["after_claim", "before_commit", "after_completion", "after_commit"])
def test_a_process_that_is_killed_there_commits_once(point):
    with Worker(sync=f"{point}=kill"):
        result = commits.delay("a")
        [job] = wait_ended(result.id)
    assert job.state == "succeeded"
    assert effects() == {"a": 1}
    lost = point != "after_commit"
    assert (job.crashes, job.node_losses, job.lease) == (0, int(lost), 1 + lost)


@shared_task(bind=True)
async def commits(self, key):
    await asyncio.sleep(0)
    return self.commit(save, key)


def saves_and_conflicts_once(key, mark):
    save(key)
    if not Path(mark).exists():
        Path(mark).touch()
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END $$")


@shared_task(bind=True)
async def conflicts_once(self, key, mark):
    await asyncio.sleep(0)
    return self.commit(saves_and_conflicts_once, key, mark)


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="PostgreSQL's own statement")
def test_after_a_conflict_the_commit_is_in_a_transaction_again(tmp_path):
    with Worker(concurrency=1):
        [job] = wait_ended(conflicts_once.delay("a", str(tmp_path / "mark")).id)
    assert (job.state, job.lease, effects()) == ("succeeded", 1, {"a": 1})


@shared_task(bind=True)
async def dies(self, directory):
    if self.job.lease == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return self.commit(save, "dies")


def test_the_death_of_a_process_counts_for_the_body_that_ran(tmp_path):
    """The others were waiting for something: they are lost with it."""
    with Worker(concurrency=1):
        other = gated.delay("a", str(tmp_path))
        begun(tmp_path, "a")
        result = dies.delay(str(tmp_path))
        begun(tmp_path, "a", lease=2)
        let_go(tmp_path, "a")
        [job, other] = wait_ended(result.id, other.id)
    assert (job.crashes, job.node_losses, job.lease) == (1, 0, 2)
    assert (other.crashes, other.node_losses, other.lease) == (0, 1, 2)
    assert effects() == {"a": 1, "dies": 1}


here: list[asyncio.Event] = []


@shared_task(bind=True)
async def ends_with_others(self, count, taken=None):
    """All of them end in one turn of the loop."""
    here.append(event := asyncio.Event())
    if len(here) >= count:
        if taken is not None and self.job.lease == 1:
            # Somebody else has this job's lease by now.
            await Job.objects.filter(pk=taken).aupdate(token=1)
        for each in here:
            each.set()
    await event.wait()
    return len(here)


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the moment of a statement is that of all its rows")
def test_bodies_that_end_at_once_are_completed_with_one_statement():
    with Worker(concurrency=1):
        jobs = wait_ended(*(each.id for each in ends_with_others.delay_many([(40,)] * 40)))
    assert {(job.state, job.lease, job.result) for job in jobs} == {("succeeded", 1, 40)}
    # The claims may have come one after the other; what was begun last is over first.
    assert len({job.finished_at for job in jobs}) < 10


def test_one_that_lost_its_lease_takes_none_of_those_along_that_end_with_it():
    with Worker(concurrency=1) as worker:
        first = ends_with_others.delay(20, None)
        results = ends_with_others.delay_many([(20, first.id)] * 19)
        jobs = wait_ended(first.id, *(each.id for each in results), timeout=60)
        assert "was given to another run" in worker.text()
    assert {job.state for job in jobs} == {"succeeded"}
    assert [job.lease for job in jobs] == [2] + [1] * 19


@pytest.mark.parametrize("point", ["before_commit", "after_completion"])
def test_a_process_that_is_killed_in_the_completion_of_several_completes_all_of_them_once(point):
    with Worker(concurrency=1, sync=f"{point}=kill"):
        jobs = wait_ended(*(each.id for each in ends_with_others.delay_many([(10,)] * 10)), timeout=60)
    assert {(job.state, job.node_losses, job.lease) for job in jobs} == {("succeeded", 1, 2)}


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="a paused commit keeps the write lock")
@pytest.mark.parametrize("point", ["before_commit", "after_completion"])
def test_the_commit_of_a_worker_that_was_taken_for_dead_rolls_back(point):
    """It is stopped before its commit, and goes on when another one has run its job."""
    with Worker(concurrency=1, sync=f"{point}=pause") as zombie:
        result = commits.delay("a")
        wait_reached(zombie.directory, point)
        zombie.signal(signal.SIGSTOP)
        with Worker(concurrency=1):
            [job] = wait_ended(result.id)
            (zombie.directory / f"{point}.go").touch()
            zombie.signal(signal.SIGCONT)
            wait_for(lambda: "was given to another run" in zombie.text(), 20, f"the zombie: {zombie.text()}")
    assert (job.state, job.lease) == ("succeeded", 2)
    assert effects() == {"a": 1}


def test_a_coroutine_of_a_worker_that_was_taken_for_dead_commits_nothing(tmp_path):
    with Worker(concurrency=1) as zombie:
        result = gated.delay("a", str(tmp_path))
        begun(tmp_path, "a")
        zombie.signal(signal.SIGSTOP)
        with Worker(concurrency=1):
            begun(tmp_path, "a", lease=2)
            let_go(tmp_path, "a")
            [job] = wait_ended(result.id)
            zombie.signal(signal.SIGCONT)
            wait_for(lambda: "was given to another run" in zombie.text(), 20, f"the zombie: {zombie.text()}")
    assert (job.state, job.lease, effects()) == ("succeeded", 2, {"a": 1})


# Stops


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_warm_stop_waits_for_them(pool, tmp_path):
    with Worker("-P", pool, concurrency=1) as worker:
        result = gated.delay("a", str(tmp_path))
        begun(tmp_path, "a")
        worker.process.terminate()
        wait_for(lambda: "Warm shutdown" in worker.text(), 10, "it stops")
        gated.delay("late", str(tmp_path))
        time.sleep(0.5)
        assert worker.process.poll() is None
        let_go(tmp_path, "a")
        [job] = wait_ended(result.id)
        # Calls go on until the process has ended: they wake its loop.
        wait_for(lambda: worker.process.poll() == 0 or not gated.delay("later", str(tmp_path)), 40, "it ends")
        assert "ERROR" not in (text := worker.text()), text
    assert (job.state, job.lease, effects()) == ("succeeded", 1, {"a": 1})
    assert set(Job.objects.exclude(pk=job.pk).values_list("lease", flat=True)) == {0}


def test_a_warm_stop_gives_back_what_does_not_end_in_time(tmp_path):
    with Worker(concurrency=1, **settings(STOP_TIMEOUT=1)) as worker:
        results = [gated.delay(str(n), str(tmp_path)) for n in range(3)]
        for n in range(3):
            begun(tmp_path, str(n))
        assert worker.stop() == 0
    for result in results:
        job = wait_state(result.id, "ready")
        assert (job.lease, job.crashes, job.node_losses) == (1, 0, 0)


def test_a_process_is_replaced_after_so_many_when_its_last_one_has_ended(tmp_path):
    with Worker("--max-tasks-per-child", "3", concurrency=1):
        first = [gated.delay(str(n), str(tmp_path)) for n in range(4)]
        pids = {begun(tmp_path, str(n)) for n in range(4)}
        let_go(tmp_path, *map(str, range(4)))
        jobs = wait_ended(*[result.id for result in first])
        assert {job.lease for job in jobs} == {1}
        [pid] = pids
        wait_for(lambda: not is_alive(pid), 40, "the process is replaced")
        let_go(tmp_path, "after")
        wait_ended(gated.delay("after", str(tmp_path)).id)
