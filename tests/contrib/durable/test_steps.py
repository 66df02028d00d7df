"""Durable tasks in this process: each step once, waits without a process, and what a deploy may change."""

from __future__ import annotations

import datetime
import gc
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import current_app, group, shared_task
from celery.app.task import Context
from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import jobs
from jobs.contrib.durable import history
from jobs.contrib.durable.history import History
from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.messages import receiving
from jobs.contrib.operations import by_hand
from jobs.contrib.psycopg3 import session
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.testing import run_jobs, send_signal
from jobs.worker.runner import Runner
from tests import tasks
from tests.contrib.durable import bodies
from tests.contrib.durable.bodies import ASKED, CALLS, DAY, FAIL, job_of, later
from tests.helpers import driver
from tests.helpers.concurrency import end_session
from tests.helpers.harness import effects, run_ready

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _clean():
    CALLS.clear()
    FAIL.clear()


def test_from_the_first_step_to_the_last():
    result = bodies.onboard.delay("a")
    run_jobs()
    job = job_of(result)
    assert (job.state, effects()) == ("scheduled", {"a:reserve": 1})
    assert abs(job.run_at - later(2)) < datetime.timedelta(minutes=1)
    run_jobs(until=later(3))
    assert job_of(result).waits_for == "signal:approved:a"
    jobs.signal("approved:a", {"by": "ada", "at": datetime.date(2026, 1, 1)})
    run_jobs()
    job = job_of(result)
    assert job.state == "succeeded", job.error
    at = datetime.date(2026, 1, 1)
    assert result.get() == [{"key": "a:reserve"}, {"by": "ada", "at": at}, ["a:ann", "a:bob"]]
    assert effects() == dict.fromkeys(("a:reserve", "a:ann", "a:bob", "a:charge"), 1)
    # Replays called nothing.
    assert CALLS == ["a:reserve", "a:charge"]
    assert (job.snoozes, job.retries) == (0, 0)
    assert [str(step) for step in Step.objects.filter(job=job.pk).order_by("pk")] == [
        "reserve",
        "sleep",
        "wait for approved:a",
        "gather",
        "charge",
    ]


def test_a_wait_that_is_over_gives_none_and_keeps_it():
    result = bodies.waits.delay("k", timeout=3600)
    run_jobs(until=later(1))
    assert (job_of(result).state, job_of(result).result) == ("succeeded", None)
    assert Step.objects.get().state == "done"


def test_a_wait_that_is_woken_early_is_over_when_it_was():
    result = bodies.waits.delay("k", timeout=3600)
    run_jobs()
    Step.objects.update(until=later(1 / 48))
    assert by_hand.run_now(job_of(result).pk, "default")
    run_jobs()
    assert job_of(result).state == "scheduled"
    assert abs(job_of(result).run_at - later(1 / 48)) < datetime.timedelta(minutes=1)


def test_a_wait_is_over_when_its_job_comes_due():
    """Two statements reckon the two moments, and a database may read its clock for each."""
    result = bodies.waits.delay("k", timeout=3600)
    run_jobs()
    Step.objects.update(until=job_of(result).run_at + datetime.timedelta(milliseconds=50))
    run_jobs(until=later(1 / 16))
    assert job_of(result).state == "succeeded"


def test_a_signal_before_its_wait_is_kept_for_it():
    jobs.signal("k", 7)
    result = bodies.waits.delay("k")
    run_jobs()
    assert job_of(result).result == 7
    assert Signal.objects.get().taken_by == job_of(result).pk


def test_one_wait_takes_one_signal():
    result = bodies.waits.delay("k")
    run_jobs()
    jobs.signal("k", 1)
    jobs.signal("k", 2)
    run_jobs()
    assert job_of(result).result == 1
    assert [each.payload for each in Signal.objects.filter(taken_by=None)] == [2]


def test_two_signals_of_a_key_let_two_waits_go_on():
    first, second, third = (bodies.waits.delay("k") for _ in range(3))
    run_jobs()
    jobs.signal("k", 1)
    jobs.signal("k", 2)
    run_jobs()
    assert [job_of(each).result for each in (first, second)] == [1, 2]
    assert job_of(third).waits_for == "signal:k"


def test_a_signal_goes_with_its_transaction():
    result = bodies.waits.delay("k")
    run_jobs()
    with pytest.raises(LookupError), transaction.atomic():
        jobs.signal("k")
        raise LookupError
    run_jobs()
    assert (job_of(result).state, Signal.objects.count()) == ("scheduled", 0)


def test_the_clock_wakes_who_was_missed(monkeypatch):
    from jobs.contrib.durable import signals

    result = bodies.waits.delay("k")
    run_jobs()
    # The sender dies after its commit.
    monkeypatch.setattr(signals, "_look", lambda *given: None)
    jobs.signal("k", 3)
    assert job_of(result).state == "scheduled"
    signals.look_again("default")
    run_jobs()
    assert job_of(result).result == 3


def test_the_clock_wakes_who_was_missed_though_the_senders_clock_is_late(monkeypatch):
    from jobs.contrib.durable import signals

    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 0.0)
        jobs.signal("k", 3)
    result = bodies.waits.delay("k")
    with monkeypatch.context() as patch:
        # The signal came after this look, and the waiting run dies before the next.
        patch.setattr(signals, "is_there", lambda *given: False)
        run_jobs()
    signals.look_again("default")
    run_jobs()
    assert job_of(result).result == 3


class InOneTransaction(TestCase):
    """As most projects test: nothing is committed."""

    def test_signals_and_children_let_a_task_go_on(self):
        result = bodies.onboard.delay("a")
        run_jobs(until=later(3))
        with transaction.atomic():
            send_signal("approved:a", 1)
        run_jobs()
        assert job_of(result).result == [{"key": "a:reserve"}, 1, ["a:ann", "a:bob"]]

    def test_a_signal_before_its_wait_is_kept_for_it(self):
        jobs.signal("k", 7)
        result = bodies.waits.delay("k")
        run_jobs()
        assert job_of(result).result == 7


def test_a_signal_with_a_wrong_key_or_payload_is_refused():
    for key, payload in ((b"k", 1), ("", 1), ("k" * 256, 1), ("k", object()), ("k", "x" * 300_000)):
        with pytest.raises((TypeError, ValueError)):
            jobs.signal(key, payload)
    assert not Signal.objects.exists()


def test_send_signal_says_if_nobody_waits():
    bodies.waits.delay("other")
    run_jobs()
    with pytest.raises(AssertionError, match="no job waits for the signal 'k': other"):
        send_signal("k")
    send_signal("other", 5)
    assert run_jobs()[-1].result == 5


def test_a_step_that_fails_is_tried_again_and_only_that(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [10, 20]}
    FAIL["b"] = [ConnectionError("away"), ConnectionError("away")]
    result = bodies.steps.delay(["a", "b", "c"])
    run_jobs()
    job = job_of(result)
    assert (job.state, job.error["message"], job.retries) == ("scheduled", "away", 0)
    assert Step.objects.get(name="b").failures == 1
    # A quarter more or less, so that those which failed together come back one by one.
    assert 7 < seconds_until(job) < 13
    assert by_hand.run_now(job.pk, "default")
    run_jobs()
    assert 14 < seconds_until(job_of(result)) < 26
    run_jobs(until=later(1))
    assert job_of(result).state == "succeeded"
    assert effects() == {"a": 1, "b": 1, "c": 1}
    assert CALLS == ["a", "b", "b", "b", "c"]


def seconds_until(job) -> float:
    return (job.run_at - later(0)).total_seconds()


def test_the_pauses_of_a_step_grow_as_those_of_its_task():
    @shared_task(
        bind=True,
        durable=True,
        name="tests.durable.backs_off",
        autoretry_for=(LookupError,),
        retry_backoff=20,
        retry_jitter=False,
    )
    def backs_off(self):
        self.step("a", bodies.leave, "a")

    FAIL["a"] = [LookupError("no")] * 3
    result = backs_off.delay()
    for seconds in (20, 40, 80):
        run_jobs()
        assert seconds - 5 < seconds_until(job_of(result)) <= seconds
        assert by_hand.run_now(job_of(result).pk, "default")
    run_jobs()
    assert job_of(result).state == "succeeded"


@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (2, 3)])
def test_a_step_has_retries_of_its_own(retries, tries):
    FAIL["a"] = [LookupError("no")] * 5
    result = bodies.steps.delay(["a"], retries=retries)
    run_jobs(until=later(1), raises=False)
    job = job_of(result)
    assert (job.state, job.error["type"]) == ("failed", "LookupError")
    assert ["a"] * tries == CALLS
    assert not effects()


def test_what_failed_for_good_goes_on_from_there_after_a_retry():
    FAIL["b"] = [LookupError("no")]
    result = bodies.steps.delay(["a", "b"])
    run_jobs(raises=False)
    assert job_of(result).state == "failed"
    assert by_hand.retry_by_hand(job_of(result).pk, "default")
    run_jobs()
    assert job_of(result).state == "succeeded"
    assert CALLS == ["a", "b", "b"]


def test_autoretry_counts_for_each_step():
    @shared_task(
        bind=True,
        durable=True,
        name="tests.durable.autoretry",
        autoretry_for=(LookupError,),
        max_retries=2,
        default_retry_delay=1,
    )
    def autoretry(self):
        self.step("a", bodies.leave, "a")
        self.step("b", bodies.leave, "b")

    FAIL.update(a=[LookupError()] * 2, b=[LookupError()] * 3)
    result = autoretry.delay()
    run_jobs(until=later(1), raises=False)
    assert (job_of(result).state, CALLS) == ("failed", ["a"] * 3 + ["b"] * 3)


def test_a_body_may_catch_what_a_step_failed_with():
    FAIL["k"] = [LookupError("gone")]
    result = bodies.catches.delay("k")
    run_jobs(until=later(2))
    assert job_of(result).result == "LookupError: gone"
    assert effects() == {"k:instead": 1}
    assert CALLS == ["k", "k:instead"]


def test_a_run_that_waits_does_not_go_on_whatever_the_body_catches():
    result = bodies.swallows.delay("k")
    run_jobs()
    assert (job_of(result).state, CALLS) == ("scheduled", [])
    run_jobs(until=later(2))
    assert job_of(result).result == {"key": "k"}


def test_steps_of_one_name_are_numbered():
    result = bodies.steps.delay(["a", "a", "a"])
    run_jobs()
    assert [step.name for step in Step.objects.order_by("pk")] == ["a", "a#2", "a#3"]
    assert (job_of(result).state, effects()) == ("succeeded", {"a": 3})


def test_a_sleep_ends_once_by_hand():
    @shared_task(bind=True, durable=True, name="tests.durable.naps")
    def naps(self):
        self.sleep(DAY)
        self.sleep(DAY)

    result = naps.delay()
    run_jobs()
    assert by_hand.run_now(job_of(result).pk, "default")
    run_jobs()
    assert job_of(result).state == "scheduled"
    assert by_hand.run_now(job_of(result).pk, "default")
    run_jobs()
    assert job_of(result).state == "succeeded"


def test_a_job_that_was_cancelled_in_its_sleep_sleeps_on_after_a_retry():
    result = bodies.onboard.delay("a")
    run_jobs()
    key = job_of(result).pk
    assert transitions.cancel(key, "default")
    # The date is the row's, and is not reckoned anew.
    Step.objects.filter(kind="sleep").update(until=later(1))
    assert by_hand.retry_by_hand(key, "default")
    run_jobs()
    assert (job_of(result).state, effects()) == ("scheduled", {"a:reserve": 1})
    assert abs(job_of(result).run_at - later(1)) < datetime.timedelta(minutes=1)


def test_what_was_done_is_taken_back_in_reverse_when_the_job_is_cancelled():
    result = bodies.takes_back.delay("k")
    run_jobs()
    assert transitions.cancel(job_of(result).pk, "default")
    run_jobs()
    assert list(effects()) == ["k:1", "k:2", "undo k:2", "undo k:1"]
    # What was taken back is done again.
    assert by_hand.retry_by_hand(job_of(result).pk, "default")
    jobs.signal("go:k")
    run_jobs()
    assert job_of(result).state == "succeeded"
    assert effects() == {"k:1": 2, "k:2": 2, "undo k:1": 1, "undo k:2": 1, "k:3": 1}


def test_a_function_that_no_other_process_can_find_takes_nothing_back():
    @shared_task(bind=True, durable=True, name="tests.durable.no_undo")
    def no_undo(self):
        self.step("a", bodies.leave, "a", on_cancel=lambda: None)

    no_undo.delay()
    with pytest.raises(TypeError, match="must be a plain function of a module"):
        run_jobs()
    assert not effects()


def test_a_deadline_cancels_the_whole_and_takes_it_back():
    result = bodies.late.delay("k")
    run_jobs(until=later(40))
    job = job_of(result)
    assert (job.state, job.error["type"]) == ("cancelled", "Expired")
    assert effects() == {"k": 1, "undo k": 1}


@shared_task(bind=True, durable=True, deadline=3600, name="tests.durable.waits_in_time")
def waits_in_time(self, how: str):
    self.step("one", bodies.leave, "one", on_cancel=bodies.undo)
    if how == "wait":
        self.wait_for("never")
    self.sleep(2 * DAY)


@pytest.mark.parametrize("how", ["wait", "sleep"])
def test_a_deadline_comes_in_tests_as_time_passes(how):
    """Also if nothing else comes due then, or only later."""
    result = waits_in_time.delay(how)
    run_jobs(until=later(1))
    job = job_of(result)
    assert (job.state, job.error["type"], job.error["message"]) == (
        "cancelled",
        "Expired",
        "its expires_at came before its next run",
    )
    assert effects() == {"one": 1, "undo one": 1}


def test_a_deadline_counts_from_the_call_whatever_the_given_id_says():
    """It may be another program's, of years ago."""
    of_2024 = uuid.UUID(int=1_710_000_000_000 << 80 | 7 << 76 | 2 << 62 | 999)
    job = job_of(waits_in_time.apply_async(("wait",), task_id=str(of_2024)))
    for moment in (job.created_at, job.expires_at - datetime.timedelta(hours=1)):
        assert abs(moment - timezone.now()) < datetime.timedelta(minutes=1)


def test_what_expires_before_it_begins_was_not_started():
    result = waits_in_time.apply_async(("wait",), countdown=7200)
    run_jobs(until=later(1))
    assert job_of(result).error["message"] == "the job was not started before expires_at"


def test_what_expires_means_ends_with_the_start():
    result = bodies.onboard.apply_async(("k",), expires=60)
    run_jobs()
    assert job_of(result).expires_at is None
    run_jobs(until=later(3))
    assert job_of(result).waits_for == "signal:approved:k"


def test_children_that_fail_fail_the_gather_and_a_retry_goes_on():
    result = bodies.gathers.delay([tasks.effect.s("a"), bodies.fails.s("no")])
    run_jobs(raises=False)
    job = job_of(result)
    assert (job.state, job.error["type"], job.error["message"]) == ("failed", "LookupError", "no")
    child = Job.objects.get(task="tests.durable.fails")
    assert child.parent_id == job.pk
    Job.objects.filter(pk=child.pk).update(task=tasks.effect.name)
    assert by_hand.retry_by_hand(child.pk, "default")
    run_jobs()
    assert by_hand.retry_by_hand(job.pk, "default")
    run_jobs()
    assert job_of(result).result == ["a", "no"]
    assert effects() == {"a": 1, "no": 1}


def test_children_that_fail_may_be_exceptions_in_the_list():
    result = bodies.gathers.delay([tasks.effect.s("a"), bodies.fails.s("no")], return_exceptions=True)
    run_jobs(raises=False)
    assert job_of(result).result == ["a", "LookupError: no"]


@pytest.mark.parametrize("chained", [False, True])
def test_a_child_that_was_replaced_fails_as_its_replacement_does(chained):
    others = bodies.fails.si("no") | tasks.effect.si("last") if chained else bodies.fails.si("no")
    result = bodies.gathers.delay([tasks.replaces.s("a", others)])
    run_jobs(raises=False)
    job = job_of(result)
    assert (job.state, job.error and job.error["message"], job.result) == ("failed", "no", None)
    other = Job.objects.get(task="tests.durable.fails")
    Job.objects.filter(pk=other.pk).update(task=tasks.effect.name)
    assert by_hand.retry_by_hand(other.pk, "default")
    run_jobs()
    assert by_hand.retry_by_hand(job.pk, "default")
    run_jobs()
    assert job_of(result).result == ["last" if chained else "no"]


def test_a_child_that_a_group_replaced_has_its_results():
    result = bodies.gathers.delay([tasks.replaces.s("a", group(tasks.passes.si(1), tasks.passes.si(2)))])
    run_jobs()
    assert job_of(result).result == [[1, 2]]


def test_each_child_has_the_error_of_what_replaced_it():
    group_ = tasks.replaces.s("a", group(tasks.passes.si(1), tasks.passes.si(2)))
    chains = [tasks.replaces.s(each, bodies.fails.si(each) | tasks.effect.si("last")) for each in ("one", "two")]
    result = bodies.gathers.delay([chains[0], group_, chains[1]], return_exceptions=True)
    run_jobs(raises=False)
    assert job_of(result).result == ["LookupError: one", [1, 2], "LookupError: two"]


def test_a_parent_that_runs_meanwhile_waits_for_what_replaced_its_child():
    result = bodies.gathers.delay([tasks.replaces.s("a", tasks.effect.s("later").set(countdown=60))])
    run_jobs()
    assert effects() == {"a": 1}
    # As if its process had died before it waited.
    Job.objects.filter(pk=result.id).update(state="ready", run_at=later(0), waits_for=None)
    run_jobs()
    assert job_of(result).state == "scheduled"
    run_jobs(until=later(1))
    assert job_of(result).result == ["later"]


def test_no_children_need_no_wait():
    result = bodies.gathers.delay([])
    run_jobs()
    assert job_of(result).result == []


@pytest.mark.parametrize("call", ["text", tasks.effect.s("a") | tasks.effect.s("b")])
def test_what_cannot_be_a_child_is_refused(call):
    @shared_task(bind=True, durable=True, name=f"tests.durable.wrong_child {call}")
    def wrong_child(self):
        self.gather([call])

    wrong_child.delay()
    with pytest.raises(TypeError, match=r"takes one list of calls"):
        run_jobs()
    assert Job.objects.count() == 1


def test_a_version_is_new_for_jobs_that_have_not_gone_past_it():
    is_new = False

    @shared_task(bind=True, durable=True, name="tests.durable.versioned")
    def versioned(self):
        self.step("first", bodies.leave, "first")
        way = "new" if is_new and self.version("2026-11") else "old"
        self.step(f"second {way}", bodies.leave, way)
        self.sleep(DAY)
        return way

    before = versioned.delay()
    run_jobs()
    is_new = True
    after = versioned.delay()
    run_jobs(until=later(2))
    assert (job_of(before).result, job_of(after).result) == ("old", "new")
    assert effects() == {"first": 2, "old": 1, "new": 1}


def test_a_deploy_may_take_out_rename_and_reorder_steps():
    names = ["a", "b", "c"]

    @shared_task(bind=True, durable=True, name="tests.durable.reordered")
    def reordered(self):
        for name in names:
            self.step(name, bodies.leave, name)
        if "c" in names:
            self.sleep(DAY)

    result = reordered.delay()
    run_jobs()
    names[:] = ["b", "renamed a"]
    run_jobs(until=later(2))
    assert job_of(result).state == "succeeded"
    assert effects() == {"a": 1, "b": 1, "c": 1, "renamed a": 1}
    assert Step.objects.filter(name="c", state="done").exists()


@pytest.mark.parametrize(("number", "name"), enumerate(["", "a" * 241, "a#2", "a\0b", 5]))
def test_a_name_that_no_step_can_have_is_refused(number, name):
    @shared_task(bind=True, durable=True, name=f"tests.durable.odd_name_{number}")
    def odd_name(self):
        self.step(name, str)

    odd_name.delay()
    with pytest.raises(ValueError, match="a step needs a name of 1 to 240 characters"):
        run_jobs()


def test_another_kind_of_step_under_the_same_name_is_refused():
    kind = "step"

    @shared_task(bind=True, durable=True, name="tests.durable.other_kind")
    def other_kind(self):
        if kind == "step":
            self.step("x", bodies.leave, "x")
        else:
            self.sleep(DAY, name="x")
        self.sleep(DAY, name="y")

    other_kind.delay()
    run_jobs()
    kind = "sleep"
    with pytest.raises(RuntimeError, match="'x' was a step when the job reached it, and is a sleep now"):
        run_jobs(until=later(2))


def one_argument(key):
    """Of two that its step has."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((bodies.leave, "x"), "the name comes first"),
        (("x", None), "None is no function: give it, and not its result"),
        (("x",), "None is no function"),
        (("x", bodies.leave, "x", one_argument), "one_argument is called with the arguments of its step"),
    ],
)
def test_a_step_that_cannot_be_says_what_to_write(given, says):
    *args, on_cancel = given if len(given) == 4 else (*given, None)

    @shared_task(bind=True, durable=True, name=f"tests.durable.cannot_be {len(given)} {says}")
    def cannot_be(self):
        self.step(*args, **({"note": "a", "on_cancel": on_cancel} if on_cancel else {}))

    cannot_be.delay()
    with pytest.raises(TypeError, match=says):
        run_jobs()


def test_a_form_to_await_that_is_not_awaited_fails_the_body():
    @shared_task(bind=True, durable=True, name="tests.durable.plain_astep")
    def plain_astep(self):
        self.astep("one", bodies.leave, "one")

    plain_astep.delay()
    with pytest.raises(TypeError, match=r"did not await self.astep\(\)"):
        run_jobs()
    assert effects() == {}


def test_when_a_step_began_is_that_of_its_last_attempt(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [60]}
    FAIL["a"] = [ConnectionError()]
    result = bodies.steps.delay(["a"])
    run_jobs()
    long_ago = later(-2)
    assert Step.objects.filter(state="waiting").update(made_at=long_ago)
    run_jobs(until=later(1))
    assert job_of(result).state == "succeeded"
    step = Step.objects.get(name="a")
    assert 0 <= (step.done_at - step.made_at).total_seconds() < 600


def test_a_step_is_one_transaction_and_stands_alone():
    @shared_task(bind=True, durable=True, name="tests.durable.nested")
    def nested(self, how):
        if how == "step":
            self.step("outer", lambda: self.step("inner", bodies.leave, "x"))
        with transaction.atomic():
            self.step("inner", bodies.leave, "x")

    nested.delay("step")
    with pytest.raises(RuntimeError, match="inside of another step"):
        run_jobs()
    nested.delay("atomic")
    with pytest.raises(TransactionManagementError, match=r"inside of transaction.atomic"):
        run_jobs()
    assert not effects()


def test_a_result_that_cannot_be_kept_rolls_the_step_back():
    @shared_task(bind=True, durable=True, name="tests.durable.no_json")
    def no_json(self):
        self.step("a", bodies.leave, "a", object())

    no_json.delay()
    with pytest.raises(TypeError, match="the result of the step 'a'"):
        run_jobs()
    assert not effects()


def test_what_a_step_says_of_the_job_is_heeded():
    @shared_task(bind=True, durable=True, name="tests.durable.snoozes")
    def snoozes(self):
        self.step("a", bodies.leave, "a")
        if not self.job.snoozes:
            self.step("b", bodies.snooze)

    result = snoozes.delay()
    run_jobs(until=later(1))
    assert (job_of(result).state, job_of(result).snoozes, effects()) == ("succeeded", 1, {"a": 1})


def test_an_external_call_goes_through_the_ledger():
    seen = []

    def charge(amount, idempotency_key):
        seen.append((amount, idempotency_key))
        assert not connection.in_atomic_block
        return {"id": "ch_1"}

    @shared_task(bind=True, durable=True, name="tests.durable.charges")
    def charges(self):
        answer = self.step("charge", charge, 5, effect=True)
        self.sleep(DAY)
        return answer

    result = charges.delay()
    run_jobs(until=later(2))
    assert job_of(result).result == {"id": "ch_1"}
    assert seen == [(5, f"charge:{result.id}")]


def test_a_plain_call_just_does_it():
    assert bodies.steps(["a"]) == [{"key": "a"}]
    with pytest.raises(RuntimeError, match="needs a job"):
        bodies.waits("k")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"durable": 1}, "True or False"),
        ({"durable": True, "atomic": True}, "each step is a transaction"),
        ({"durable": True, "lock": "k"}, "lock= do not go together"),
        ({"durable": True, "idempotency_key": "k"}, "idempotency_key= do not go together"),
        ({"deadline": DAY}, "add durable=True"),
        ({"durable": True, "deadline": "soon"}, "a timedelta"),
        ({"durable": True, "deadline": -5}, "above zero"),
    ],
)
def test_what_does_not_go_together_is_refused_where_it_is_declared(declare, options, says):
    with pytest.raises((TypeError, ValueError), match=says):
        declare(**options)


def test_a_replay_reads_all_steps_with_one_statement(monkeypatch):
    result = bodies.onboard.delay("a")
    run_jobs(until=later(3))
    jobs.signal("approved:a")
    read, steps = [], history.steps
    monkeypatch.setattr(history, "steps", lambda *given: read.append(given) or steps(*given))
    with CaptureQueriesContext(connection) as queries:
        run_jobs(limit=1)
    assert job_of(result).waits_for.startswith("gather:")
    assert len(read) == 1
    # Nor does it read one of them by Django.
    asked = [query["sql"] for query in queries if 'FROM "jobs_step"' in query["sql"] and "SELECT" in query["sql"]]
    assert not [sql for sql in asked if '"job" = ' in sql and "LIMIT" not in sql]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere each of these takes several statements")
def test_a_signal_wakes_its_job_with_one_statement_and_is_taken_with_one(node, tmp_path, monkeypatch):
    driver.prepares()
    # A busy process has them planned anew each second.
    monkeypatch.setattr(session, "PLANNED", 1e9)
    worker_state.queues = [current_app.conf.task_default_queue]
    runner = Runner(current_app._get_current_object(), "here")
    for _ in range(2):
        bodies.waits.delay("k")
    while runner.run_batch():
        pass
    found = {}
    # What is prepared the first time is there the second time.
    for number in range(2):
        found["signal"] = round_trips(lambda: jobs.signal("k", number), tmp_path)  # noqa: B023
        found["run"] = round_trips(runner.run_batch, tmp_path)
        assert not runner.run_batch()
    # The signal, and the wake; the claim, the steps, the step with what it takes and its commit, the completion.
    assert found == {"signal": 2, "run": 4}
    assert [*Step.objects.order_by("pk").values_list("state", "result")] == [("done", 0), ("done", 1)]
    runner.slot.free()


def round_trips(go, tmp_path):
    """How often this connection waits for the server while it runs."""
    with (tmp_path / "messages").open("wb") as file:
        connection.connection.pgconn.trace(file.fileno())
        go()
        connection.connection.pgconn.untrace()
    return (tmp_path / "messages").read_text(errors="replace").count("\tReadyForQuery\t")


def test_a_deleted_job_takes_its_steps_and_signals_along(settings):
    jobs.signal("k", 1)
    result = bodies.waits.delay("k")
    run_jobs()
    from jobs.contrib.pruning.prune import delete

    assert delete([job_of(result).pk], "default") == 1
    assert not Step.objects.exists()
    assert not Signal.objects.exists()


def test_signals_that_nobody_took_are_forgotten_in_time(settings):
    from jobs.contrib.durable import signals

    settings.JOBS = {**settings.JOBS, "RETENTION_SIGNALS": 3600}
    jobs.signal("old")
    Signal.objects.update(made_at=later(-1))
    jobs.signal("new")
    assert signals.prune("default", 10) == 1
    assert [str(each) for each in Signal.objects.all()] == ["new"]


@pytest.mark.parametrize("how", ["asked", "taken"])
def test_a_run_that_was_asked_to_end_or_lost_its_job_commits_no_step(how):
    @shared_task(bind=True, durable=True, name=f"tests.durable.{how}")
    def ends(self):
        self.step("a", bodies.leave, "a", on_cancel=bodies.undo)
        if how == "asked":
            assert transitions.ask_to_end(self.job.pk, "default")
        else:
            Job.objects.filter(pk=self.job.pk).update(lease=99)
        self.step("b", bodies.leave, "b")

    result = ends.delay()
    run_jobs()
    assert CALLS == ["a", "b"]
    if how == "asked":
        assert job_of(result).state == "cancelled"
        assert effects() == {"a": 1, "undo a": 1}
    else:
        assert (job_of(result).state, job_of(result).lease) == ("running", 99)
        assert effects() == {"a": 1}


@pytest.mark.parametrize("until", ["started", "finished"])
def test_another_of_its_unique_key_may_wait_once_it_has_started(until):
    @shared_task(bind=True, durable=True, name=f"tests.durable.unique {until}", unique="u", unique_until=until)
    def one_of_a_key(self):
        self.sleep(DAY)
        return "done"

    first = one_of_a_key.delay()
    run_jobs()
    second = one_of_a_key.delay()
    assert second.existing == (until == "finished")
    run_jobs(until=later(3))
    assert {job_of(each).result for each in (first, second)} == {"done"}


def test_each_external_call_of_a_name_is_made():
    ASKED.clear()
    result = bodies.charges_all.delay(["a", "b"])
    run_jobs()
    assert [f"charge:{result.id}", f"charge:{result.id}:2"] == ASKED
    jobs.signal("go")
    run_jobs()
    assert job_of(result).result == ["a", "b"]


def test_a_call_that_was_made_while_somebody_cancelled_is_taken_back():
    ASKED.clear()
    result = bodies.charges_all.delay(["cancelled", "b"])
    run_jobs()
    assert (job_of(result).state, len(ASKED)) == ("cancelled", 1)
    assert effects() == {"refund cancelled": 1}


def test_a_retry_makes_anew_what_was_taken_back():
    ASKED.clear()
    result = bodies.charges_all.delay(["a"])
    run_jobs()
    key = job_of(result).pk
    assert transitions.cancel(key, "default")
    # What takes it back would take back what the retry makes.
    with pytest.raises(jobs.Busy, match="still being taken back"):
        by_hand.retry_by_hand(key, "default")
    run_jobs()
    assert by_hand.retry_by_hand(key, "default")
    run_jobs()
    # It was taken back once, and made once more, under a key of its own.
    assert effects() == {"refund a": 1}
    assert [f"charge:{key}", f"charge:{key}:again"] == ASKED
    assert job_of(result).waits_for == "signal:go"


def test_a_retry_does_not_sleep_through_what_was_ended_by_hand():
    @shared_task(bind=True, durable=True, name="tests.durable.ended_by_hand")
    def ended_by_hand(self):
        self.sleep(30 * DAY)
        self.step("a", bodies.leave, "a", retries=0)

    FAIL["a"] = [LookupError()]
    result = ended_by_hand.delay()
    run_jobs()
    assert by_hand.run_now(job_of(result).pk, "default")
    run_jobs(raises=False)
    assert job_of(result).state == "failed"
    assert by_hand.retry_by_hand(job_of(result).pk, "default")
    run_jobs()
    assert job_of(result).state == "succeeded"


def test_a_retry_gets_past_the_failed_step_whatever_was_added_before_it():
    has_more = False

    @shared_task(bind=True, durable=True, name="tests.durable.more_steps")
    def more_steps(self):
        if has_more:
            self.step("new", bodies.leave, "new")
        self.step("a", bodies.leave, "a", retries=1)

    FAIL["a"] = [LookupError(), LookupError()]
    result = more_steps.delay()
    run_jobs()
    has_more = True
    run_jobs(until=later(1), raises=False)
    assert job_of(result).state == "failed"
    assert by_hand.retry_by_hand(job_of(result).pk, "default")
    run_jobs()
    assert (job_of(result).state, effects()) == ("succeeded", {"a": 1, "new": 1})


def test_expires_is_about_the_start_also_of_a_task_with_a_deadline():
    @shared_task(bind=True, durable=True, deadline=DAY, name="tests.durable.expires_soon")
    def expires_soon(self):
        Job.objects.filter(pk=self.job.pk).update(expires_at=later(-1))
        self.step("a", bodies.leave, "a")

    result = expires_soon.apply_async(expires=60)
    run_jobs()
    assert job_of(result).state == "succeeded"


def test_a_job_whose_deadline_is_over_runs_again_by_hand():
    result = bodies.late.delay("k")
    run_jobs()
    Job.objects.filter(pk=result.id).update(made_at=later(-2))
    assert transitions.cancel(job_of(result).pk, "default")
    run_jobs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "created_at", property(lambda job: later(-2)))
        assert by_hand.retry_by_hand(job_of(result).pk, "default")
        run_jobs()
    assert job_of(result).state == "scheduled", job_of(result).error


def test_a_new_step_before_a_version_does_not_hide_what_has_gone_past_it():
    is_new = False

    @shared_task(bind=True, durable=True, name="tests.durable.version_after_a_new_step")
    def version_after_a_new_step(self):
        if is_new:
            self.step("new", bodies.leave, "new")
            way = "new" if self.version("2026-11") else "old"
        else:
            way = "old"
        self.step(f"second {way}", bodies.leave, way)
        self.sleep(DAY)
        return way

    result = version_after_a_new_step.delay()
    run_jobs()
    is_new = True
    run_jobs(until=later(2))
    assert job_of(result).result == "old"


def test_what_tells_of_the_children_is_in_the_queue_of_the_parent():
    bodies.gathers.apply_async(([tasks.effect.s("a")],), queue="mail")
    run_jobs()
    assert Job.objects.get(task="jobs.wake").queue == "mail"


def test_a_run_takes_its_history_along():
    before = len([each for each in gc.get_objects() if type(each) is History])
    bodies.steps.delay(["a"])
    run_jobs()
    gc.collect()
    assert len([each for each in gc.get_objects() if type(each) is History]) <= before


def test_what_is_raised_at_the_commit_of_a_step_is_told(caplog):
    @shared_task(bind=True, durable=True, name="tests.durable.struck")
    def struck(self):
        return self.step("a", leave_and_break, "a")

    result = struck.delay()
    with caplog.at_level("WARNING", "jobs"):
        run_jobs()
    assert (job_of(result).state, effects()) == ("succeeded", {"a": 1})
    assert "the step 'a' is done although LookupError was raised at its commit" in caplog.text


def leave_and_break(key):
    def broken():
        raise LookupError

    transaction.on_commit(broken)
    return bodies.leave(key)


def test_the_sender_wakes_who_waits_and_no_clock_has_to():
    result = bodies.waits.delay("k")
    run_jobs()
    jobs.signal("k", 3)
    assert job_of(result).state == "ready"


@shared_task(bind=True, durable=True, name="tests.durable.many_steps")
def many_steps(self, number: int):
    for each in range(number):
        self.step("it", int, each)


def test_too_many_steps_are_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(history, "MOST", 5)
    fine, too_many = many_steps.delay(5), many_steps.delay(6)
    with pytest.raises(RuntimeError, match=r"the job has 5 steps.*self\.gather"):
        run_jobs()
    run_jobs()
    assert [job_of(each).state for each in (fine, too_many)] == ["succeeded", "failed"]


@pytest.mark.slow
def test_a_thousand_steps_are_each_done_once():
    result = bodies.goes_far.delay(1000)
    run_jobs()
    jobs.signal("go on")
    run_jobs()
    assert job_of(result).result == 1000
    assert len(CALLS) == 1000
    assert Step.objects.filter(job=result.id).count() == 1001


def test_children_may_be_more_than_one_statement_reads():
    result = bodies.many_children.delay(600)
    run_jobs()
    assert job_of(result).result == 600


def test_an_answer_that_is_lost_after_the_commit_of_a_step_is_believed(monkeypatch):
    """The COMMIT went through, and nobody heard of it."""
    lost = []

    def struck(self, exc_type, *exc):
        leave = own_exit(self, exc_type, *exc)
        if exc_type is None and not lost and not connection.in_atomic_block and Step.objects.exists():
            lost.append(True)
            raise OperationalError("the answer got lost")
        return leave

    own_exit = transaction.Atomic.__exit__
    monkeypatch.setattr(transaction.Atomic, "__exit__", struck)
    result = many_steps.delay(2)
    run_jobs()
    assert lost
    assert job_of(result).state == "succeeded"
    assert Step.objects.count() == 2


@shared_task(bind=True, durable=True, deadline=0.5, name="tests.durable.late_without_steps")
def late_without_steps(self):
    time.sleep(0.7)


def test_a_deadline_holds_at_the_end_of_a_body_without_steps():
    result = late_without_steps.delay()
    run_jobs()
    job = job_of(result)
    assert (job.state, job.error["type"]) == ("cancelled", "Expired")


def test_a_deadline_holds_although_the_call_may_begin_later():
    result = bodies.late.apply_async(("k",), expires=3 * 86400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "created_at", property(lambda job: later(-2)))
        run_jobs()
    job = job_of(result)
    assert (job.state, job.error["type"]) == ("cancelled", "Expired")


def _half_of_a_payment():
    transaction.on_commit(lambda: CALLS.append("hook"))
    try:
        # As Model.delete() and the save() of a child model do.
        with transaction.atomic(savepoint=False):
            bodies.leave("debit")
            raise ValueError
    except ValueError:
        return "ok"


def test_a_step_that_django_would_roll_back_is_not_committed():
    @shared_task(bind=True, durable=True, max_retries=0, name="tests.durable.pays_half")
    def pays_half(self):
        return self.step("pay", _half_of_a_payment)

    result = pays_half.delay()
    run_jobs(raises=False)
    assert (job_of(result).state, effects(), CALLS) == ("failed", {}, ["debit"])


def test_the_pause_of_a_step_is_that_of_the_task():
    @shared_task(bind=True, durable=True, autoretry_for=(OSError,), retry_kwargs={"countdown": 2}, name="tests.paces")
    def paces(self):
        self.step("a", bodies.leave, "a")

    @shared_task(bind=True, durable=True, autoretry_for=(OSError,), default_retry_delay=None, name="tests.no_pace")
    def no_pace(self):
        self.step("b", bodies.leave, "b")

    FAIL.update({"a": [OSError()], "b": [OSError()]})
    first, second = paces.delay(), no_pace.delay()
    run_jobs()
    assert job_of(first).run_at < later(1 / 60)
    assert effects() == {"b": 1}
    assert job_of(second).state == "succeeded"


def test_a_thread_of_the_body_takes_no_steps(node, monkeypatch):
    monkeypatch.setattr(worker_state, "_heartbeat_at", time.monotonic())
    said = []

    @shared_task(bind=True, durable=True, name="tests.durable.in_a_thread")
    def in_a_thread(self):
        with ThreadPoolExecutor(1) as pool:
            said.append(pool.submit(self.step, "a", bodies.leave, "a").exception())

    in_a_thread.delay()
    run_ready()
    assert "in the thread of the body" in str(said[0])
    assert effects() == {}


def test_what_cannot_be_a_job_does_not_run_without_its_waits():
    message = Context(id=str(uuid.uuid4()), delivery_info={"routing_key": "default"})
    with pytest.raises(ValueError, match="bytes"):
        receiving.receive(bodies.onboard, message, ["x" * 300_000], {})
    assert effects() == {}


@pytest.mark.parametrize("time", [11 * 366 * 86400, datetime.timedelta(days=4100), datetime.datetime.max])
def test_a_wait_is_ten_years_at_the_most_and_knows_its_time_zone(time):
    with pytest.raises(ValueError, match=r"more than ten years|needs a time zone"):
        bodies.late.sleep(time)
    with pytest.raises(ValueError, match="more than ten years"):
        bodies.late.sleep(later(4100))


@shared_task(bind=True, durable=True, name="tests.durable.outlives_its_session")
def outlives_its_session(self, key):
    CALLS.append(key)
    end_session()
    self.step("one", bodies.leave, f"{key}:one")
    end_session()
    self.step("two", bodies.leave, f"{key}:two")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="no server ends a connection")
def test_a_step_begins_though_the_session_ended_before_it(node, monkeypatch):
    """Between two steps the body waited for longer than the server, or a pooler, keeps an idle session."""
    monkeypatch.setattr(history, "TRUSTED", -1)
    CALLS.clear()
    outlives_its_session.delay("a")
    run_ready()
    job = Job.objects.get()
    assert (job.state, job.lease, job.node_losses) == ("succeeded", 1, 0)
    assert (CALLS, effects()) == (["a", "a:one", "a:two"], {"a:one": 1, "a:two": 1})
