"""Limits: never more at once than places, never more starts than the rate, and nobody behind who has to wait."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from io import StringIO
from itertools import pairwise

import pytest
from celery import current_app, shared_task
from celery.app.task import Context
from django.core.management import CommandError, call_command
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.db.models.signals import post_delete

from jobs.conf import problems as wrong_settings
from jobs.contrib.limits import claims as limited
from jobs.contrib.limits import limits, rates, store
from jobs.contrib.limits.claims import LimitedClaimer
from jobs.contrib.limits.rates import limit_of
from jobs.contrib.messages import receiving
from jobs.contrib.operator import problems, status
from jobs.contrib.why import waiting
from jobs.contrib.why.explain import explain
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.transitions import now_plus
from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import clock
from jobs.models import Job, Limit, RateLimiter
from jobs.store import databases
from jobs.store.base import Claim
from jobs.worker.runner import Runner
from tests import tasks
from tests.contrib.limits import tasks as bodies
from tests.contrib.limits.claiming import QUEUE, claim, end, take
from tests.faults.worker import Worker
from tests.helpers.harness import wait_ended
from tests.helpers.rows import let_heartbeat, make, make_node
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("node")]


def test_no_more_run_at_once_than_there_are_places():
    bodies.two_at_once.delay_many([(name,) for name in "abcd"])
    assert take() == ["a", "b"]
    assert take() == []
    assert sorted(Job.objects.filter(state="running").values_list("limit_slot", flat=True)) == [0, 1]
    end("a")
    assert take() == ["c"]
    assert set(Job.objects.filter(state="ready").values_list("lease", "started_at")) == {(0, None)}, "d used nothing"


def test_those_that_stand_in_the_way_do_not_make_the_claims_small(monkeypatch):
    """Guard: a claim reads few rows at first, and more after one that came back short."""
    monkeypatch.setattr(limited, "LOOK", 3600.0)
    bodies.two_at_once.delay_many([(name,) for name in range(27)])
    tasks.noop.delay_many([()] * 100)
    claimer = LimitedClaimer()
    sizes = [len(claimer.claim("default", QUEUE, worker_state.node, 20)) for _ in range(4)]
    assert sizes[0] == sizes[2] == sizes[3] == 20


def test_two_running_jobs_have_one_place_never():
    """Guard: the constraint, and not what a claim has counted."""
    bodies.two_at_once.delay_many([(name,) for name in "ab"])
    assert take() == ["a", "b"]
    for column in ("limit_slot", "queue_slot"):
        with pytest.raises(IntegrityError), transaction.atomic():
            Job.objects.filter(state="running").update(**{column: 0})


@pytest.mark.parametrize("ending", ["succeed", "crash", "give_back", "cancel"])
def test_a_place_is_free_however_its_run_ended(ending):
    bodies.two_at_once.delay_many([(name,) for name in "abc"])
    first, second = claim()
    if ending == "succeed":
        assert transitions.succeed(first, None, 0.1)
    elif ending == "crash":
        assert transitions.crash(first, transitions.error_entry("WorkerLostError", "died"), 3)
    elif ending == "cancel":
        assert transitions.cancel_running(first, transitions.error_entry("Cancelled", "by hand"))
    else:
        assert transitions.hand_back_claim("default", worker_state.node, first.token, begun=second.pk) == 1
    # One that crashed begins anew at the end of the line.
    assert take() == (["a"] if ending == "give_back" else ["c"])


def test_each_key_has_its_own_places():
    bodies.one_of_a_customer.delay_many([(customer, key) for customer in "ab" for key in "12"])
    assert [job.args for job in claim()] == [["a", "1"], ["b", "1"]]
    end("b")
    assert [job.args for job in claim()] == [["b", "2"]]


def test_a_better_row_that_comes_late_is_claimed_before_the_claims_end(monkeypatch):
    """Guard: a claim that finds nothing from its last start on looks from the beginning (PostgreSQL)."""
    monkeypatch.setattr(limited, "LOOK", 1000.0)
    claimer = LimitedClaimer()
    for customer in "abc":
        bodies.one_of_a_customer.apply_async((customer, "1"), priority=5)
    assert take(1, claimer) == ["a"]
    bodies.one_of_a_customer.delay("z", "1")
    assert sorted(take(9, claimer)) == ["b", "c", "z"]


def test_they_keep_their_turn():
    for key, priority in (("first", 5), ("late", 5), ("urgent", 0)):
        bodies.one_of_a_customer.apply_async(("a", key), priority=priority)
    bodies.one_of_a_customer.apply_async(("b", "other"), priority=3)
    order = []
    while jobs := claim(1):
        order.append(jobs[0].args[1])
        if jobs[0].args[0] == "a":
            end("a")
    assert order == ["urgent", "other", "first", "late"]


def test_others_pass_those_that_are_held_back():
    bodies.two_at_once.delay_many([(n,) for n in range(500)])
    tasks.noop.delay()
    claimer = LimitedClaimer()
    assert take(2, claimer) == [0, 1]
    assert [job.task for job in claim(1, claimer)] == ["tests.tasks.noop"]
    assert Job.objects.filter(state="ready", held=True).count() == 498
    assert take(5, claimer) == []
    assert RateLimiter.objects.filter(look_at__isnull=False).count() == 1
    # The process that had them lets in the next ones, before it claims.
    claimer.note_left(Job.objects.filter(state="running", limit_key__isnull=False))
    end(1)
    assert take(5, claimer) == [2]
    # Whoever else looks, too: that process may be dead.
    end(0)
    RateLimiter.objects.update(look_at=1.0)
    assert take(5) == [3]


def test_a_newcomer_stands_behind_those_that_are_held():
    bodies.two_at_once.delay_many([(n,) for n in range(100)])
    assert take(2) == [0, 1]
    assert take() == []
    assert Job.objects.filter(held=True).count() == 98
    bodies.two_at_once.delay("new")
    end(0)
    RateLimiter.objects.update(look_at=databases.epoch("default") + 30)
    assert take() == [], "they are not let in yet, and it is not its turn"
    RateLimiter.objects.update(look_at=1.0)
    assert take() == [2]


@pytest.mark.slow
def test_all_that_was_held_runs_in_its_order():
    bodies.two_at_once.delay_many([(n,) for n in range(150)])
    claimer, order = LimitedClaimer(), []
    while jobs := claim(1, claimer):
        order += [job.args[0] for job in jobs]
        end()
        claimer.note_left(jobs)
    assert order == list(range(150))
    assert not RateLimiter.objects.filter(look_at__isnull=False)


def test_what_is_held_in_one_queue_is_let_in_by_the_workers_of_another():
    bodies.two_at_once.delay_many([(n,) for n in range(100)], queue="mail")
    claimer = LimitedClaimer()
    assert take(2, claimer, "mail") == [0, 1]
    assert take(2, claimer, "mail") == []
    assert Job.objects.filter(held=True).count() == 98
    end()
    RateLimiter.objects.update(look_at=1.0)
    assert take() == []
    assert Job.objects.filter(state="ready", held=None).count() == 2


def test_a_process_of_many_queues_lets_in_what_is_held():
    """It asks which queues have something, and what is held waits in none."""
    worker_state.queues = [QUEUE, "others"]
    bodies.two_at_once.delay("a")
    Job.objects.update(held=True)
    RateLimiter.objects.create(pk=Job.objects.get().limit_key, next_at=0, last_at=0, look_at=databases.epoch("default"))
    worker_state.holds = True
    runner = Runner(current_app._get_current_object(), "here")
    assert runner.run_batch()
    runner.slot.free()
    assert Job.objects.get().state == "succeeded"


def test_an_idle_process_asks_nothing_after_its_last_job(monkeypatch):
    """Each job of a limit woke another process, which looked with six statements, though all of them were busy."""
    monkeypatch.setattr(Runner, "wakeup", Wakeup())
    worker_state.queues = [QUEUE]
    bodies.two_at_once.delay_many([(name,) for name in range(60)])
    runner = Runner(current_app._get_current_object(), "here")
    while runner.run_batch():
        pass
    runner.slot.free()
    assert not Job.objects.exclude(state="succeeded").exists()
    assert not runner.wakeup.wait(0)


def test_a_queue_has_its_own_limit(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"concurrency": 3}}}
    for _ in range(5):
        tasks.noop.apply_async((), queue="mail")
        tasks.noop.apply_async((), queue="other")
    assert len(claim(10, queue="mail")) == 3
    assert claim(10, queue="mail") == []
    assert len(claim(10, queue="other")) == 5
    end()
    assert len(claim(10, queue="mail")) == 2


def test_limits_of_a_task_and_of_its_queue_both_hold(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"celery": {"concurrency": 3}}}
    bodies.two_at_once.delay_many([(name,) for name in "abc"])
    assert take() == ["a", "b"]
    tasks.noop.delay_many([()] * 3)
    assert [job.task for job in claim()] == ["tests.tasks.noop"]
    assert claim() == []


def test_a_rate_lets_one_start_after_the_other():
    bodies.five_a_second.delay_many([(n,) for n in range(4)])
    claimer = LimitedClaimer()
    deadline = time.monotonic() + 5
    while Job.objects.filter(state="running").count() < 4:
        assert time.monotonic() < deadline
        time.sleep(min(claimer.patience, 0.01))
        claim(10, claimer)
    assert_paced(0.2, 4)


def assert_paced(pause: float, number: int) -> None:
    """By the time of the claims."""
    started = sorted(Job.objects.filter(state="running").values_list("started_at", flat=True))
    gaps = [(after - before).total_seconds() for before, after in pairwise(started)]
    assert len(started) == number
    # On SQLite and MariaDB a claim is several statements, each with a clock of its own.
    assert min(gaps) >= pause - (1e-5 if connection.vendor == "postgresql" else 0.05), gaps


def test_what_a_rate_lets_in_begins_now_and_not_behind_others():
    tasks.noop.delay()
    bodies.five_a_second.delay("paced")
    tasks.noop.delay()
    claimer = LimitedClaimer()
    both = claimer.claim("default", QUEUE, worker_state.node, 10)
    assert [job.task for job in both] == ["tests.tasks.noop"] * 2
    assert take(10, claimer) == ["paced"]


def test_a_queue_has_its_own_rate(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"rate": "1/m"}}}
    for _ in range(3):
        tasks.noop.apply_async((), queue="mail")
    claimer = LimitedClaimer()
    assert len(claim(10, claimer, "mail")) == 1
    assert claim(10, claimer, "mail") == []
    assert 30 < claimer.patience <= 60
    RateLimiter.objects.update(next_at=databases.epoch("default"))
    assert len(claim(10, claimer, "mail")) == 1


@shared_task(rate_limit="6/m")
def six_a_minute(key):
    Effect.objects.create(key=key, pid=os.getpid())


def test_the_rate_limit_of_celery_is_that_of_all_workers():
    six_a_minute.delay_many([(n,) for n in range(10)])
    assert take() == [0]
    assert take() == []
    [limiter] = RateLimiter.objects.all()
    assert limiter.next_at - limiter.last_at == pytest.approx(10)


def test_jobs_from_before_their_task_had_a_limit_have_it_as_well():
    bodies.two_at_once.delay_many([(name,) for name in "abcd"])
    Job.objects.update(limit_key=None)
    claimer = LimitedClaimer()
    assert take(10, claimer) == ["a", "b"]
    assert take(10, claimer) == []


def test_plain_jobs_are_claimed_by_the_plain_statement():
    tasks.noop.delay_many([()] * 5)
    claimer = LimitedClaimer()
    assert len(claim(1, claimer)) == 1
    bodies.two_at_once.delay("a")
    rest = claimer.claim("default", QUEUE, worker_state.node, 10)
    assert [job.task for job in rest] == ["tests.tasks.noop"] * 4
    assert take(10, claimer) == ["a"]


def why(number: int) -> dict[str, object]:
    """The first reason why the job of this argument waits."""
    job = next(job for job in Job.objects.filter(state="ready") if job.args[:1] == [number])
    _, (first, *_) = explain(job.pk)
    return {"code": first.code, "says": first.says, **first.evidence}


@pytest.fixture
def alive(node, monkeypatch):
    """This process's node is a worker, and none of its bodies runs for long, however busy the machine is."""
    monkeypatch.setattr(waiting, "LONG", 600)
    node.queues, node.tasks, node.concurrency = [QUEUE, "mail"], list(current_app.tasks), 8
    node.save()
    let_heartbeat(node)


def test_why_names_the_limit_and_who_has_its_places(alive):
    bodies.two_at_once.delay_many([(n,) for n in range(100)])
    assert take(100) == [0, 1]
    for number, ahead in ((2, 0), (50, 48)):
        found = why(number)
        # Both may have begun in the same millisecond.
        holders = [str(job.pk) for job in Job.objects.filter(state="running")]
        assert (found["code"], found["limit"], found["ahead"]) == ("limit_reached", 2, ahead)
        assert sorted(found["jobs"]) == sorted(holders)
        assert found["jobs"][0] in found["says"]
    end()
    assert why(2)["code"] != "limit_reached"


def test_why_names_the_rate(alive):
    six_a_minute.delay_many([(n,) for n in range(3)])
    assert take() == [0]
    found = why(1)
    assert (found["code"], found["limit"]) == ("rate_reached", "6/m")
    assert 5 < found["seconds"] <= 10


def test_a_project_may_hide_the_key_of_a_limit(settings):
    limits.set_by_hand(tasks.effect.name, 1, None)
    node = let_heartbeat(make_node(tasks=[tasks.effect.name]))
    make("running", node=node, limit_key="Ada of Paris", limit_slot=1)
    job = make(limit_key="Ada of Paris")

    def said() -> str:
        out = StringIO()
        call_command("jobs", "why", str(job.pk), stdout=out)
        call_command("jobs", "why", str(job.pk), "--json", stdout=out)
        return out.getvalue()

    assert "of Ada of Paris at most 1" in said()
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redactions.hide_errors_and_keys"}
    assert "Ada of Paris" not in said()
    assert "of *** at most 1" in said()
    # The task's name is no key.
    Job.objects.update(limit_key=tasks.effect.name)
    assert f"of {tasks.effect.name} at most 1" in said()


def test_why_names_the_limit_of_the_queue(alive, settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"concurrency": 1}}}
    for n in range(2):
        tasks.effect.apply_async((n,), queue="mail")
    assert len(claim(queue="mail")) == 1
    assert why(1)["code"] == "limit_reached"


def test_a_limit_that_is_reached_is_told_and_is_no_fault(alive):
    bodies.two_at_once.delay_many([(n,) for n in range(3)])
    assert take() == [0, 1]
    Job.objects.update(run_at=now_plus(-3600))
    found = status.gather(live=True)
    noted = {each.kind: each.text for each in problems.of(found)}
    assert not any(problems.kinds()[kind].is_fault for kind in noted), noted
    assert "limit reached" in noted["limited"]
    [row] = [row for row in found["limits"] if row["reached"]]
    assert (row["name"], row["running"], row["concurrency"]) == ("tests.contrib.limits.tasks.two_at_once", 2, 2)


def test_what_is_set_by_hand_wins_and_holds_within_a_poll(settings):
    bodies.two_at_once.delay_many([(n,) for n in range(6)])
    tasks.noop.apply_async((), queue="mail")
    call_command("jobs", "limit", "--task", "two_at_once", "--concurrency", "3", stdout=StringIO())
    call_command("jobs", "limit", "mail", "--rate", "1/h", stdout=StringIO())
    assert take() == [0, 1], "not yet"
    clock.tick()
    assert take() == [2]
    assert len(claim(queue="mail")) == 1
    tasks.noop.apply_async((), queue="mail")
    assert claim(queue="mail") == []
    # A lower one ends nothing, and lets nobody in until fewer run.
    call_command("jobs", "limit", "--task", "two_at_once", "--concurrency", "1", stdout=StringIO())
    clock.tick()
    end(2)
    assert take() == []
    end()
    assert take() == [3]
    for clear in (("--task", "two_at_once"), ("mail",)):
        call_command("jobs", "limit", *clear, "--clear", stdout=StringIO())
    clock.tick()
    assert (take(), len(claim(queue="mail"))) == ([4], 1)


@pytest.mark.parametrize("words", [("limit", "mial", "--concurrency", "3"), ("pause", "mial")])
def test_a_queue_that_nobody_knows_gets_the_nearest(words):
    tasks.noop.apply_async((), queue="mail")
    err = StringIO()
    call_command("jobs", *words, stdout=StringIO(), stderr=err)
    assert "did you mean `mail`?" in err.getvalue()
    known = StringIO()
    for name in ("mail", "celery"):
        call_command("jobs", *(name if word == "mial" else word for word in words), stdout=StringIO(), stderr=known)
    assert known.getvalue() == ""


def test_limits_are_listed_and_wrong_ones_refused(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"concurrency": 3, "rate": "100/m"}}}
    out = StringIO()
    call_command("jobs", "limit", stdout=out)
    assert "queue mail: 3 at once (0 run), 100/m" in out.getvalue()
    for wrong in (("mail",), ("mail", "--rate", "often"), ("mail", "--concurrency", "0"), ("--rate", "1/s")):
        with pytest.raises(CommandError):
            call_command("jobs", "limit", *wrong, stdout=StringIO())
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        ({"mail": {"concurency": 3}}, r"has no option 'concurency': did you mean `concurrency`\?"),
        ({"mail": {"concurrency": 0}}, "concurrency=0 must be a whole number from 1"),
        ({"mail": {"rate": "100 a minute"}}, "rate='100 a minute' must be a number and its time"),
        (["mail"], "must be a dict of dicts"),
    ],
)
def test_settings_that_cannot_work_say_so(settings, queues, says):
    settings.JOBS = {**settings.JOBS, "QUEUES": queues}
    [problem] = wrong_settings()
    assert re.search(says, problem)


@pytest.mark.parametrize(("rate", "number", "seconds"), [("100/m", 100, 60), ("1000/s", 1000, 1), ("7/h", 7, 3600)])
def test_no_stretch_of_time_has_more_starts_than_the_rate(rate, number, seconds):
    limit = limit_of(rate=rate)
    assert limit.burst - 1 + math.ceil(seconds / limit.pause - 1e-9) <= number
    assert seconds / limit.pause > 0.9 * number, "and few are lost"


@shared_task(atomic=False, concurrency=3)
def three_at_once(key, seconds=0.05):
    """Not in one transaction, so that on SQLite bodies run side by side."""
    time.sleep(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["task", "queue"])
def test_never_four_of_three_run_while_workers_are_killed(of, settings):
    """Sampled from the rows while processes, and whole workers, are killed at random."""
    settings.JOBS = {**settings.JOBS, "MAX_CRASHES": 1000, "MAX_NODE_LOSSES": 1000}
    if of == "queue":
        settings.JOBS |= {"QUEUES": {"mail": {"concurrency": 3}}}
    task, queue = (three_at_once, QUEUE) if of == "task" else (tasks.lingers, "mail")
    seen: Counter[int] = Counter()
    random.seed(5)

    def sample() -> None:
        placed = {"limit_slot__isnull": False} if of == "task" else {"queue": "mail"}
        seen[Job.objects.filter(state="running", **placed).count()] += 1

    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("-Q", f"{QUEUE},mail", concurrency=3)) for _ in range(2)]
        keys = [result.id for result in task.delay_many([(n, 0.1) for n in range(80)], queue=queue)]
        for round_ in range(6):
            deadline = time.monotonic() + 0.7
            while time.monotonic() < deadline:
                sample()
            victim = random.choice(workers)
            if round_ == 3:
                victim.kill()
                workers.remove(victim)
                workers.append(stack.enter_context(Worker("-Q", f"{QUEUE},mail", concurrency=3)))
            else:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(victim.children).pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while Job.objects.filter(pk__in=keys).exclude(state="succeeded").exists():
            sample()
            assert time.monotonic() < deadline, Counter(Job.objects.values_list("state", "held"))
    assert max(seen) == 3, seen


def test_a_rate_is_that_of_all_who_claim_together():
    bodies.five_a_second.delay_many([(n,) for n in range(10)])

    def run() -> None:
        claimer = LimitedClaimer()
        try:
            while Job.objects.filter(state="ready").exists():
                claim(10, claimer)
                time.sleep(min(claimer.patience, 0.005))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run) for _ in range(4)]:
            future.result(60)
    assert_paced(0.2, 10)


@pytest.mark.slow
def test_workers_keep_a_rate_as_one():
    began = time.monotonic()
    results = bodies.five_a_second.delay_many([(n,) for n in range(10)])
    with Worker(concurrency=2), Worker(concurrency=2):
        wait_ended(*[result.id for result in results])
    assert time.monotonic() - began > 9 * 0.2
    assert RateLimiter.objects.get().next_at > 0


def test_celery_control_sets_the_rate_of_all_workers():
    name = six_a_minute.name
    with Worker(concurrency=1):
        [wrong] = current_app.control.rate_limit(name, "often", reply=True, timeout=20, limit=1)
        assert "must be a number and its time" in str(wrong)
        [answer] = current_app.control.rate_limit(name, "1/h", reply=True, timeout=20, limit=1)
        assert "new rate limit set successfully" in str(answer)
        wait_for(lambda: Limit.objects.filter(pk=name, rate="1/h").exists(), 20, "the row")


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="elsewhere a claim is a transaction with a lock")
@pytest.mark.parametrize("change", [{"held": True}, {"queue": "mail"}], ids=["held", "moved"])
def test_what_is_held_or_moved_while_a_claim_looks_is_not_claimed(change, monkeypatch):
    """Guard: one that ran as held would wait for ever when it is given back, behind a limiter that nobody looks at."""
    bodies.two_at_once.delay("a")
    with slow_claims(monkeypatch), ThreadPoolExecutor(1) as pool:
        found = pool.submit(claim_apart)
        time.sleep(0.3)
        Job.objects.update(**change)
        assert found.result(10) == []
    assert Job.objects.get().state == "ready"


@contextmanager
def slow_claims(monkeypatch):
    """Between what a claim sees and its locks half a second passes."""
    slow = store._CLAIM.replace("), found", "), slow AS MATERIALIZED (SELECT pg_sleep(0.6)::text AS word), found")
    at = "SELECT id FROM jobs_job WHERE "
    assert at in slow
    with monkeypatch.context() as patch:
        patch.setattr(store, "_CLAIM", slow.replace(at, f"{at}(SELECT word FROM slow) = '' AND "))
        store.claim_sql.cache_clear()
        yield
    store.claim_sql.cache_clear()


def claim_apart() -> list[Job]:
    try:
        return LimitedClaimer().claim("default", QUEUE, worker_state.node, 1)
    finally:
        connections.close_all()


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="elsewhere a claim is a transaction with a lock")
def test_who_passes_one_gate_of_two_has_passed_none(settings, monkeypatch):
    """Else a start of six in a minute would be lost because another job of the queue was faster."""
    settings.JOBS = {**settings.JOBS, "QUEUES": {QUEUE: {"rate": "60/m"}}}
    six_a_minute.delay("a")
    with slow_claims(monkeypatch), ThreadPoolExecutor(1) as pool:
        found = pool.submit(claim_apart)
        time.sleep(0.3)
        RateLimiter.objects.create(
            key=f"@{QUEUE}", last_at=databases.epoch("default"), next_at=databases.epoch("default") + 1
        )
        assert found.result(10) == []
    assert RateLimiter.objects.get().pk == f"@{QUEUE}"


def test_a_faster_rate_holds_at_once():
    """Also for what was started at the slower one, and for what is held until its time."""
    tasks.noop.delay_many([()] * 100)
    claimer = LimitedClaimer()
    set_rate("1/h")
    assert len(claim(5, claimer)) == 1
    assert Job.objects.filter(held=True).count() == 99
    set_rate("100/s")
    time.sleep(0.1)
    assert claim(1, claimer)
    set_rate("1/h")
    time.sleep(0.1)
    assert len(claim(5, claimer)) == 1
    set_rate(None)
    assert len(claim(50, claimer)) == 50


def set_rate(rate: str | None) -> None:
    limits.set_by_hand("tests.tasks.noop", None, rate)
    clock.tick()


def test_a_clock_that_was_put_back_closes_no_gate():
    six_a_minute.delay("a")
    hour = databases.epoch("default") + 3600
    RateLimiter.objects.create(key=six_a_minute.name, last_at=hour, next_at=hour + 10)
    assert take(1) == ["a"]
    assert RateLimiter.objects.get().next_at < hour


def test_the_time_of_a_queue_that_is_not_claimed_any_more_wakes_nobody_twice():
    claimer = LimitedClaimer()
    claimer._opens_at["default", "gone"] = time.monotonic()
    assert claimer.patience == 0.001
    assert claimer.patience > 1


@pytest.mark.parametrize("wrong", [{"rate": "10/fortnight"}, {"concurrency": 20_000}], ids=["rate", "concurrency"])
def test_a_limit_that_this_release_cannot_read_stops_no_claim(wrong, caplog):
    Limit.objects.create(name=bodies.two_at_once.name, **wrong)
    Limit.objects.create(name=tasks.noop.name, concurrency=1)
    clock.tick()
    bodies.two_at_once.delay_many([(name,) for name in "abc"])
    tasks.noop.delay_many([()] * 2)
    assert [job.task for job in claim()] == [bodies.two_at_once.name] * 2 + [tasks.noop.name]
    assert "limit_wrong" in {getattr(record, "action", "") for record in caplog.records}


def test_many_limits_set_by_hand_reach_the_processes():
    Limit.objects.bulk_create([Limit(name=f"tests.tasks.none_{n:0200}", concurrency=5) for n in range(1000)])
    clock.tick()
    assert len(worker_state.limits) == 1000
    Limit.objects.bulk_create([Limit(name=f"tests.tasks.more_{n:0200}", concurrency=5) for n in range(5000)])
    # More than there is room for; all goes on with those of before.
    clock.tick()
    assert len(worker_state.limits) == 1000
    bodies.two_at_once.delay_many([(name,) for name in "abc"])
    assert take() == ["a", "b"]


@pytest.mark.parametrize("rate", ["1e-17/s", "1e-9/h", "0." + 40 * "0" + "/s"])
def test_rates_that_nobody_can_keep_are_refused(rate):
    with pytest.raises(CommandError):
        call_command("jobs", "limit", "mail", "--rate", rate, stdout=StringIO())
    with pytest.raises(CommandError, match="longer than"):
        call_command("jobs", "limit", "m" * 300, "--concurrency", "1", stdout=StringIO())


def test_what_was_claimed_is_run_although_the_look_after_it_failed(monkeypatch):
    def fail(*args):
        raise OperationalError("server closed the connection unexpectedly")

    bodies.two_at_once.delay("a")
    monkeypatch.setattr(LimitedClaimer, "_tidy", fail)
    claimer = LimitedClaimer()
    assert [job.args for job in claimer.claim("default", QUEUE, worker_state.node, 1)] == [["a"]]
    with pytest.raises(OperationalError):
        claimer.claim("default", QUEUE, worker_state.node, 1)


on_postgresql = pytest.mark.skipif(
    "connection.vendor != 'postgresql'", reason="SQLite has one writer, and looks from the start"
)


def by_hand(name, concurrency=None, rate=None) -> None:
    limits.set_by_hand(name, concurrency, rate)
    clock.tick()


@pytest.mark.parametrize("of", ["task", "queue"])
def test_a_lowered_limit_lets_nobody_in_until_fewer_run(of):
    name = tasks.effect.name if of == "task" else "@celery"
    by_hand(name, 5)
    tasks.effect.delay_many([(number,) for number in range(10)])
    assert take(10) == [0, 1, 2, 3, 4]
    by_hand(name, 2)
    end(0, 1)
    assert take(10) == []
    end(2, 3)
    assert take(10) == [5]


@on_postgresql
@pytest.mark.parametrize("of", ["held", "unmarked"])
def test_no_claim_waits_for_somebody_elses_lock(of):
    by_hand(tasks.effect.name, 1)
    tasks.effect.delay_many([(number,) for number in range(100)])
    if of == "held":
        assert (take(1), take(1)) == ([0], [])
        end(0)
        RateLimiter.objects.update(look_at=1.0)
    first = Job.objects.filter(state="ready").order_by("run_at", "id").first()
    queue = "mail" if of == "held" else QUEUE
    tasks.noop.apply_async(queue=queue)

    def apart():
        try:
            return LimitedClaimer().claim("default", queue, worker_state.node, 1)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        assert transitions.cancel(first.pk, "default")
        # Waits for ever if the claim does.
        assert pool.submit(apart).result(20)


def test_a_clock_that_is_put_back_forgets_nobody_who_is_held():
    by_hand(tasks.effect.name, 1)
    tasks.effect.delay_many([(number,) for number in range(100)])
    assert (take(1), take(1)) == ([0], [])
    RateLimiter.objects.update(look_at=databases.epoch("default") + 3600)
    end(0)
    claimer, found = LimitedClaimer(), []

    def again() -> bool:
        clock.tick()
        found.extend(take(1, claimer))
        return bool(found)

    wait_for(again, 20, "the next one is let in")
    assert found == [1]


@on_postgresql
def test_who_was_busy_for_long_looks_from_the_beginning():
    for number in range(3):
        bodies.one_of_a_customer.apply_async((f"c{number}", "later"), priority=5)
    claimer = LimitedClaimer()
    assert take(1, claimer) == ["c0"]
    bodies.one_of_a_customer.apply_async(("c1", "urgent"), priority=0)
    claimer._tidy_at.clear()
    assert [job.args for job in claimer.claim("default", QUEUE, worker_state.node, 1)] == [["c1", "urgent"]]


@pytest.mark.parametrize(
    ("task", "rate", "rows"),
    [
        (bodies.five_a_second, "26/s", [(number,) for number in range(300)]),
        (bodies.one_of_a_customer, "31/m", [(str(number), "") for number in range(60)] * 5),
    ],
    ids=["a fast one", "one of many customers"],
)
def test_what_a_rate_lets_in_is_not_held_again_at_once(task, rate, rows, monkeypatch):
    by_hand(task.name, None, rate)
    task.delay_many(rows)
    claimer, held = LimitedClaimer(), []
    for _ in range(60 if task is bodies.one_of_a_customer else 1):
        assert claimer.claim("default", QUEUE, worker_state.node, 1)
    end()
    hold = limited._hold
    monkeypatch.setattr(limited, "_hold", lambda *args: held.append(hold(*args)) or held[-1])
    if task is bodies.five_a_second:
        # Its time does not come in the whole claim.
        monkeypatch.setattr(rates.Limit, "since", lambda limit, limiter, now: now + 1.0)
        monkeypatch.setattr(store, "take", lambda *args: [])
        monkeypatch.setattr(limited, "_take_anywhere", lambda *args: [])
    claimer.claim("default", QUEUE, worker_state.node, 1)
    assert len(held) <= 1


def test_a_call_by_name_says_its_limit_like_any_other():
    """Else claims have to look at it twice."""
    context = Context(id=str(uuid.uuid4()), delivery_info={"exchange": "", "routing_key": QUEUE})
    receiving.insert(bodies.one_of_a_customer.name, context, ["ada"], {})
    assert Job.objects.get().limit_key == f"{bodies.one_of_a_customer.name}:ada"


def test_a_gate_at_which_somebody_is_held_meanwhile_stays_whoever_listens():
    """With receivers Django reads the rows and deletes them by their keys: a held job would wait for ever."""
    RateLimiter.objects.create(key="a")
    RateLimiter.objects.create(key="b")

    def hold(execute, sql, params, many, context):
        if sql.startswith("DELETE"):
            RateLimiter.objects.filter(pk="a").update(look_at=1.0)
        return execute(sql, params, many, context)

    def receive(**kwargs):
        """A project's audit log."""

    post_delete.connect(receive, sender=RateLimiter)
    try:
        with connection.execute_wrapper(hold):
            assert limited.prune_rate_limiters("default") == 1
    finally:
        post_delete.disconnect(receive, sender=RateLimiter)
    assert [limiter.pk for limiter in RateLimiter.objects.all()] == ["a"]


@pytest.mark.database
def test_names_are_names_whatever_the_server_makes_of_backslashes():
    """With ``standard_conforming_strings`` off a backslash escapes the quote after it."""
    if connection.vendor != "postgresql":
        pytest.skip("a setting of PostgreSQL")
    names = ["\\", "it's 100 %", "\\\\'"]
    rows = [make(queue=name) for name in names]
    known = limits.Limits({"a\\'b": rates.Limit(2)}, {name: rates.Limit(3) for name in names})
    with connection.cursor() as cursor:
        cursor.execute("SET standard_conforming_strings = off")
    try:
        taken = [
            store.take("default", Claim(name, worker_state.node, 1, claims.new_token()), known, limited.WINDOW)
            for name in names
        ]
        assert [[job.pk for job in jobs] for jobs in taken] == [[row.pk] for row in rows]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET standard_conforming_strings")
