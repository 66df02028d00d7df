"""What strikes a process hits one row of those that it claimed; the others wait behind it."""

from __future__ import annotations

import signal

import pytest

from jobs.lifecycle.worker_state import LONG
from jobs.models import Job, Node
from tests import tasks
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_CHILD, WORK
from tests.faults.manner import again
from tests.faults.strike import Strike
from tests.faults.worker import Worker
from tests.helpers.servers import wait_for
from tests.models import Order

#: The rest of a claim goes back when its process died; what no process has goes back as well, but as lost.
REST = Without("jobs.maintenance.rescue:OwnJobs._finish_in", "0", call="transitions.hand_back_claim")
#: A row of a claim that is not young any more is renewed before it is begun.
RENEWAL = Without("jobs.worker.runner:Runner._renew", "True")
#: Behind it, the fence of the completion.
FENCE = Without("jobs.store.postgresql:SUCCEED", "", clause=" AND {STILL_RUNNING} AND lease = {{3}} AND token = {{4}}")
#: What waits behind a long body is given back.
WAITING = "jobs.maintenance.rescue:OwnJobs.hand_back_waiting"


def counts(*keys: str) -> set[tuple[int, int, int]]:
    """Retries, crashes and losses of these jobs."""
    return set(Job.objects.filter(pk__in=keys).values_list("retries", "crashes", "node_losses"))


def assert_nobody_else_counts(struck: Strike, crashes: int = 0, losses: int = 0) -> None:
    assert counts(struck.job) == {(0, crashes, losses)}
    others = Job.objects.exclude(pk=struck.job)
    assert set(others.values_list("retries", "crashes", "node_losses")) == {(0, 0, 0)}
    assert set(Job.objects.filter(pk__in=struck.before).values_list("lease", flat=True)) <= {1}


@pytest.mark.quick
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@guard(REST, case="first")
@guard(Without("jobs.lifecycle.transitions:crash", "lose(job, error, limit)"), case="middle")
def test_body_that_kills_its_process(ledger, tmp_path, place):
    """SIGKILL in the body of the first, a middle, the last row of a claim.

    Guard: the worker state names the row whose body it was, and that one alone counts a crash; the others are given
    back by the token of their claim.
    """
    struck = Strike(tmp_path, place, "body", "kill")
    ledger.enqueue(600)
    with Worker(**struck.env):
        struck.wait()
        ledger.check(within=LOST_CHILD)
    assert_nobody_else_counts(struck, crashes=1)


@pytest.mark.databases("postgres", "sqlite")
@pytest.mark.parametrize(
    ("point", "place"),
    [
        ("between", "first"),
        ("between", "middle"),
        again("between", "last"),
        ("after_claim", "first"),
        again("after_claim", "middle"),
        again("after_claim", "last"),
        again("before_commit", "first"),
        ("before_commit", "middle"),
        again("before_commit", "last"),
        again("after_completion", "first"),
        again("after_completion", "middle"),
        ("after_completion", "last"),
        again("after_commit", "first"),
        ("after_commit", "middle"),
        again("after_commit", "last"),
    ],
)
@guard(REST, case="between middle postgres")
@guard(REST, case="after_claim first postgres")
@guard(REST, case="after_commit middle postgres")
def test_process_killed_beside_a_body(ledger, tmp_path, point, place):
    """SIGKILL at each other step of a claim: nobody's fault, and the one row that it hit is lost, no more than that.

    Guard: what waits behind it is given back by the token of the claim.
    """
    struck = Strike(tmp_path, place, point, "kill")
    ledger.enqueue(600)
    with Worker(**struck.env):
        struck.wait()
        ledger.check(within=LOST_CHILD)
    # Of a row that was not begun, or that was committed, nothing is lost.
    assert_nobody_else_counts(struck, losses=0 if point in ("between", "after_commit") else 1)


@pytest.mark.parametrize("task", [tasks.effect, tasks.slow], ids=["atomic", "bare"])
@pytest.mark.parametrize("point", ["body", "named"])
@guard(WAITING, case="body atomic")
@guard(RENEWAL, case="body bare")
@guard(RENEWAL, FENCE, case="named atomic")
def test_process_paused_in_a_batch(ledger, tmp_path, point, task):
    """For so long that others have run what waited behind it; then it goes on.

    Guard: the supervisor gives that back, and a process renews the rows of an old claim before it begins them; behind
    it, the fence of the completion.
    """
    struck = Strike(tmp_path, "middle", point, "stop")
    ledger.enqueue(600, task, kwargs={"seconds": 0} if task is tasks.slow else {})
    with Worker(**struck.env):
        struck.wait()
        struck.wait_behind(LONG + LOST_CHILD)
        assert Job.objects.get(pk=struck.job).state == "running"
        struck.process.resume()
        ledger.check(within=WORK)
    assert_nobody_else_counts(struck)
    assert Job.objects.get(pk=struck.job).lease == 1
    assert set(Job.objects.filter(pk__in=struck.behind).values_list("lease", flat=True)) == {2}


@guard(Without("jobs.worker.runner:Runner._run", "self._renew(job) and False", clause="not self._renew(job)"))
def test_batch_given_back_and_taken_by_nobody_else(ledger, tmp_path):
    """The only process is paused: when it goes on, what waited behind its body is not its own any more.

    Guard: a row that was given back is not begun.
    """
    struck = Strike(tmp_path, "middle", "body", "stop")
    ledger.enqueue(600, tasks.slow, kwargs={"seconds": 0})
    with Worker(concurrency=1, **struck.env):
        struck.wait()
        struck.wait_behind(LONG + LOST_CHILD, "ready")
        struck.process.resume()
        ledger.check(within=WORK)
    assert_nobody_else_counts(struck)
    assert set(Job.objects.filter(pk__in=struck.behind).values_list("lease", flat=True)) == {2}


@pytest.mark.quick
@guard(WAITING)
def test_body_that_takes_long_for_once(ledger, tmp_path):
    """A task that was fast before, with others behind it: they do not wait for it.

    Guard: what waits behind a long body is given back.
    """
    struck = Strike(tmp_path, "first", "body", "wait")
    ledger.enqueue(600)
    with Worker(**struck.env):
        struck.wait()
        struck.wait_behind(LONG + LOST_CHILD)
        rest = Job.objects.exclude(pk=struck.job).exclude(state="succeeded")
        wait_for(lambda: not rest.exists(), WORK, "all others have ended")
        struck.go()
        ledger.check(within=WORK)
    assert_nobody_else_counts(struck)
    assert Job.objects.get(pk=struck.job).lease == 1


@guard(Without("jobs.worker.watchdog:_supervise", "True", clause="_ended(child) == 0"))
def test_supervisor_killed_in_a_batch(ledger, tmp_path):
    """The next one finds on the worker state what waits behind whom.

    Guard: the watchdog starts it again; the worker state outlives it.
    """
    struck = Strike(tmp_path, "middle", "body", "wait")
    ledger.enqueue(600)
    with Worker(**struck.env) as worker:
        struck.wait()
        worker.supervisor.kill()
        worker.said("died and is started again")
        struck.wait_behind(LONG + LOST_CHILD)
        struck.go()
        ledger.check(within=WORK)
    assert_nobody_else_counts(struck)
    assert Job.objects.get(pk=struck.job).lease == 1


@pytest.mark.parametrize("how", ["warm", "cold", again("soft")])
@guard(
    Without("jobs.worker.runner:Runner._run_all", "False", clause="worker_state.stopping_for is not None"), case="warm"
)
@guard(REST, "jobs.maintenance.rescue:OwnJobs.hand_back_all", case="cold")
def test_stopped_in_a_batch(ledger, tmp_path, how):
    """Warm: the body that runs is finished, and the rest of its claim goes back at once. Cold: all of it goes back.

    Guard: a stop ends after the current body; what a process had when its worker ended it is given back when its death
    is seen, or at the sign-off.
    """
    struck = Strike(tmp_path, "middle", "body", "wait")
    soft = {"REMAP_SIGTERM": "SIGQUIT", "JOBS_TEST_CELERY": '{"worker_soft_shutdown_timeout": 5}'}
    ledger.enqueue(600)
    with Worker(concurrency=1, **struck.env, **(soft if how == "soft" else {})) as old:
        struck.wait()
        old.main.signal(signal.SIGQUIT if how == "cold" else signal.SIGTERM)
        if how != "cold":
            old.said({"warm": "Warm shutdown", "soft": "Initiating Soft Shutdown"}[how])
            struck.go()
        old.process.wait(30)
        wait_for(Node.objects.filter(signed_off=True).exists, 10, "the node signed off")
    assert Job.objects.get(pk=struck.job).state == ("ready" if how == "cold" else "succeeded")
    assert set(Job.objects.filter(pk__in=struck.behind).values_list("state", "lease")) == {("ready", 1)}
    with Worker():
        ledger.check(within=WORK)
    assert_nobody_else_counts(struck)


@guard(REST)
def test_hard_time_limit_in_a_batch(ledger, tmp_path):
    """It ends one body, and its process with it; not what waits behind that.

    Guard: the limit is that of the row on the worker state; the others are given back.
    """
    struck = Strike(tmp_path, "middle", "body", "hang")
    ledger.enqueue(600, time_limit=1)
    with Worker(**struck.env):
        struck.wait()
        late = Order.objects.get(job=struck.job).key
        ledger.check(within=LOST_CHILD, otherwise={late: "failed"})
    assert_nobody_else_counts(struck)
    assert Job.objects.get(pk=struck.job).error["type"] == "TimeLimitExceeded"


@guard(Without("jobs.contrib.unknown_tasks.parking:put_aside", "False"))
def test_unknown_tasks_at_the_head_of_a_queue(ledger):
    """More of them than one statement puts aside; a worker that knows them comes later.

    Guard: they are put behind the others, many at once.
    """
    ledger.enqueue(1200)
    ledger.enqueue(300, tasks.lingers, kwargs={"seconds": 0})
    unknown, known = (Job.objects.filter(task=f"tests.tasks.{name}") for name in ("effect", "lingers"))
    with Worker(concurrency=1, JOBS_TEST_FORGET="tests.tasks.effect") as old:
        wait_for(lambda: not known.exclude(state="succeeded").exists(), WORK, "the others have ended")
        assert not unknown.filter(state="succeeded").exists()
        assert old.stop() == 0
        with Worker():
            ledger.check(within=WORK)
    assert set(Job.objects.values_list("retries", "crashes", "node_losses")) == {(0, 0, 0)}
