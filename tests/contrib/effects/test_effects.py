"""``effect()``: whoever dies, and at whatever moment, the ledger says what is known of the call."""

from __future__ import annotations

import json
import os
import signal

import pytest
from celery import current_app, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.db.models import F

from jobs import Snooze, effect
from jobs import effect as effect_of
from jobs.conf import syncpoints
from jobs.contrib.effects import rows
from jobs.contrib.operations import by_hand
from jobs.events.models import Event
from jobs.lifecycle import transitions
from jobs.lifecycle.run import persistently
from jobs.models import Effect, Job
from shop import payments
from shop.models import Customer
from shop.services import place_order
from shop.tasks import charge_order
from tests import models
from tests.helpers.concurrency import Elsewhere, by_default, open_transaction, somebody_waits
from tests.helpers.harness import Worker, deliver, wait_ended
from tests.helpers.provider import Provider
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def _charge(call, name):
    """Charge at the test's provider, as the shop does."""
    if not call.done:
        models.Effect.objects.create(key="calling", pid=os.getpid())
        call.answered(payments.charge(name, 100, idempotency_key=call.key))
    models.Effect.objects.create(key=call.answer["id"], note=name)
    return call.answer["id"]


@shared_task(atomic=False, on_ambiguous="retry", max_retries=0)
def charges_retry(name):
    with effect_of("charge", name) as call:
        return _charge(call, name)


@shared_task(atomic=False, on_ambiguous="park", max_retries=0)
def charges_park(name):
    with effect_of("charge", name) as call:
        return _charge(call, name)


@shared_task(atomic=False, on_ambiguous=lambda call: payments.find_charge(call.key), max_retries=0)
def charges_resolve(name):
    with effect_of("charge", name) as call:
        return _charge(call, name)


CHARGES = {"retry": charges_retry, "park": charges_park, "resolve": charges_resolve}


class Scripted:
    """What the bodies below do with their call, and what the provider says when it is asked."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.block = lambda call: call.answered("the answer")
        self.resolve = lambda call: None

    def run(self, parts):
        with effect_of(*parts) as call:
            self.block(call)
        return call.answer


scripted = Scripted()


@shared_task(atomic=False)
def calls_retry(*parts):
    return scripted.run(parts)


@shared_task(
    atomic=False,
    on_ambiguous="park",
    autoretry_for=(Exception,),
    dont_autoretry_for=(KeyError,),
    max_retries=3,
    default_retry_delay=0,
)
def calls_park(*parts):
    return scripted.run(parts)


@shared_task(atomic=False, on_ambiguous=lambda call: scripted.resolve(call))
def calls_resolve(*parts):
    return scripted.run(parts)


CALLS = {"retry": calls_retry, "park": calls_park, "resolve": calls_resolve}
KEY = "charge:order-1"


@pytest.fixture
def provider(tmp_path):
    provider = Provider(tmp_path)
    yield provider
    provider.stop()


def charging() -> int:
    """Wait until a body is about to charge; the pid of its process."""
    return wait_for(lambda: models.Effect.objects.filter(key="calling").values_list("pid", flat=True).last(), 20)


def status(key: str = "order-1") -> str:
    return rows.status(rows.with_makers(Effect.objects.filter(key=key)).get())


def say(*options: str) -> None:
    call_command("jobs", "effects", str(Effect.objects.get().pk), *options)


# Deaths

POINTS = {"before_call": 0, "in_call": 1, "after_call": 1, "after_sent": 1}


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.parametrize("policy", CHARGES)
@pytest.mark.parametrize("point", POINTS)
def test_process_killed_around_the_call(provider, point, policy):
    """Charged once, at every policy; and only "retry" ever calls a second time."""
    if point == "in_call":
        provider.hold.touch()
    sync = "" if point == "in_call" else f"{point}=kill"
    with Worker(concurrency=1, sync=sync, PAYMENT_URL=provider.url):
        job = CHARGES[policy].delay("order-1")
        if point == "in_call":
            pid = charging()
            wait_for(lambda: provider.charges[KEY], 20, "the provider charged")
            os.kill(pid, signal.SIGKILL)
            provider.hold.unlink()
        [row] = wait_ended(job.id)
        assert row.crashes == 1
        assert provider.requests[KEY] == POINTS[point] + (point == "before_call" and policy != "park") + (
            policy == "retry" and point in ("in_call", "after_call")
        )
        if policy == "park" and point != "after_sent":
            assert (row.state, row.error["type"], status()) == ("failed", "EffectParked", "parked")
            assert [str(call) for call in rows.unsettled("default")] == [KEY]
            if charge := payments_of(provider):
                say("--happened", "--answer", f'{{"id": "{charge}"}}')
            else:
                say("--not-happened")
            call_command("jobs", "retry", job.id)
            [row] = wait_ended(job.id)
        assert (row.state, row.error and row.error["type"]) == ("succeeded", None)
    assert provider.charges == {KEY: 1}
    assert row.result == payments_of(provider) == Effect.objects.get().answer["id"]
    assert status() == "sent"
    assert models.Effect.objects.filter(key=row.result).count() == 1


def payments_of(provider: Provider) -> str | None:
    """The charge's id, as a person reads it at the provider."""
    lines = [json.loads(line) for line in provider.ledger.read_text().splitlines()] if provider.ledger.exists() else []
    return next((line["charge"]["id"] for line in lines if line["kind"] == "charge"), None)


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.parametrize("policy", CHARGES)
def test_provider_killed_after_charging(provider, policy):
    provider.die.touch()
    with Worker(concurrency=1, PAYMENT_URL=provider.url):
        job = CHARGES[policy].delay("order-1")
        [row] = wait_ended(job.id)
        assert (row.state, row.error["type"]) == ("failed", "RemoteDisconnected")
        assert status() == "ambiguous"
        assert [str(call) for call in rows.unsettled("default")] == [KEY]
        provider.start()
        call_command("jobs", "retry", job.id)
        [row] = wait_ended(job.id)
        if policy == "park":
            assert (row.error["type"], status()) == ("EffectParked", "parked")
            say("--happened", "--answer", '{"id": "found by a person"}')
            call_command("jobs", "retry", job.id)
            [row] = wait_ended(job.id)
    assert row.state == "succeeded"
    assert provider.charges == {KEY: 1}
    assert provider.requests == {KEY: 2 if policy == "retry" else 1}
    assert status() == "sent"


@pytest.mark.slow
def test_whole_worker_killed_in_the_call_and_another_one_goes_on(provider):
    provider.hold.touch()
    with Worker(concurrency=1, PAYMENT_URL=provider.url) as first:
        job = charges_retry.delay("order-1")
        wait_for(lambda: provider.charges[KEY], 20, "the provider charged")
        first.kill()
        provider.hold.unlink()
    with Worker(concurrency=1, PAYMENT_URL=provider.url):
        [row] = wait_ended(job.id)
    assert (row.state, row.node_losses, Effect.objects.get().calls) == ("succeeded", 1, 2)
    assert provider.charges == {KEY: 1}


@pytest.mark.slow
@pytest.mark.database
def test_zombie_that_gets_its_answer_late_writes_nothing(provider):
    """Paused in its call, its job run by another worker meanwhile: what it hears then belongs to nobody."""
    provider.hold.touch()
    with Worker(concurrency=1, PAYMENT_URL=provider.url) as zombie:
        job = charges_retry.delay("order-1")
        wait_for(lambda: provider.charges[KEY], 20, "the provider charged")
        # Before its call times out.
        zombie.signal(signal.SIGSTOP)
        with Worker(concurrency=1, PAYMENT_URL=provider.url):
            provider.hold.unlink()
            [row] = wait_ended(job.id)
            before = Effect.objects.values().get()
            assert (row.state, before["lease"], before["state"]) == ("succeeded", 2, "sent")
            zombie.signal(signal.SIGCONT)
            wait_for(lambda: "given to another run" in zombie.text(), 20, "the zombie noticed")
    assert Effect.objects.values().get() == before
    assert provider.charges == {KEY: 1}
    assert models.Effect.objects.exclude(key="calling").count() == 1


@pytest.mark.slow
@pytest.mark.database
def test_two_jobs_with_the_same_key_at_once_make_one_call(provider):
    provider.hold.touch()
    with Worker(concurrency=2, PAYMENT_URL=provider.url):
        first = charges_retry.delay("order-1")
        wait_for(lambda: provider.charges[KEY], 20, "the provider charged")
        second = charges_retry.delay("order-1")
        waiting = wait_for(lambda: Job.objects.filter(pk=second.id, snoozes__gt=0).first(), 20, "the second snoozes")
        assert waiting.error["type"] == "Busy"
        assert status() == "sending"
        assert not rows.unsettled("default").exists()
        provider.hold.unlink()
        one, other = wait_ended(first.id, second.id)
    assert one.result == other.result
    assert (one.state, other.state, other.retries) == ("succeeded", "succeeded", 0)
    assert (provider.requests, provider.charges) == ({KEY: 1}, {KEY: 1})


# In this process


@pytest.fixture(autouse=True)
def _forget_scripts():
    yield
    scripted.forget()


class Unreachable(Exception):
    pass


def script(block=None, resolve=None) -> list[str]:
    """What the block does with a call that it has to make, and what the provider says; returns the keys of calls."""
    made: list[str] = []

    def body(call):
        if not call.done:
            made.append(call.key)
            (block or (lambda call: call.answered({"id": len(made)})))(call)

    scripted.block = body
    scripted.resolve = resolve or (lambda call: None)
    return made


def fail(call):
    raise Unreachable


def run(task, *parts) -> Job:
    """A job, run here to its end."""
    result = task.delay(*parts)
    deliver(result)
    return Job.objects.get(pk=result.id)


def run_again(job: Job) -> Job:
    assert by_hand.retry_by_hand(job.pk, "default")
    deliver(calls_retry.AsyncResult(str(job.pk)))
    return Job.objects.get(pk=job.pk)


def test_answer_is_kept_and_given_to_every_later_job(node):
    made = script()
    for task in (calls_retry, calls_park, calls_resolve):
        job = run(task, "charge", "order-1")
        assert (job.state, job.result) == ("succeeded", {"id": 1})
    assert made == [KEY]
    row = Effect.objects.get()
    assert (row.name, row.key, row.state, row.calls, row.answer) == ("charge", "order-1", "sent", 1, {"id": 1})
    assert row.sent_at is not None


@pytest.mark.database
def test_a_call_that_another_transaction_is_at_is_busy_and_does_not_fail(node):
    """REPEATABLE READ: whoever waited for the row is refused."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite's transactions are serial")
    script(fail)
    run(calls_retry, "charge", "order-1")
    made = script()

    def be_faster():
        Effect.objects.update(calls=F("calls") + 1)

    with by_default("repeatable read"), open_transaction(be_faster):
        slower = Elsewhere(lambda: run(calls_retry, "charge", "order-1"))
        wait_for(somebody_waits, 10, "the second waits for the row")
    job = slower.result()
    assert (job.state, job.snoozes, job.error["type"], made) == ("scheduled", 1, "Busy", [])


def test_another_name_or_key_is_another_call(node):
    made = script()
    for parts in (("charge", 1), ("refund", 1), ("charge", 1, 2), ("charge", "1:2")):
        assert run(calls_retry, *parts).state == "succeeded"
    assert made == ["charge:1", "refund:1", "charge:1:2", "charge:1\\:2"]


def test_sending_is_committed_before_the_block_and_sent_within_it(node):
    seen = []

    def block(call):
        # Another connection sees what is committed; this one is in no transaction.
        seen.append((transaction.get_autocommit(), Effect.objects.get().state))
        call.answered(None)
        seen.append((transaction.get_autocommit(), Effect.objects.get().state))

    script(block)
    assert run(calls_retry, "charge", 1).state == "succeeded"
    assert seen == [(True, "sending"), (True, "sent")]


@pytest.mark.parametrize("policy", CALLS)
def test_exception_in_the_block_leaves_the_call_to_the_policy_of_the_next_run(node, policy):
    script(fail)
    job = run(calls_retry, "charge", "order-1")
    assert (job.state, job.error["type"], status()) == ("failed", "Unreachable", "ambiguous")
    made = script(resolve=lambda call: {"id": f"asked for {call.key}"})
    again = run(CALLS[policy], "charge", "order-1")
    if policy == "retry":
        assert (again.result, made, Effect.objects.get().calls) == ({"id": 1}, [KEY], 2)
    if policy == "resolve":
        assert (again.result, made) == ({"id": f"asked for {KEY}"}, [])
    if policy == "park":
        assert (again.state, again.retries, made, status()) == ("failed", 0, [], "parked")
    else:
        assert status() == "sent"


def test_parked_job_says_what_a_person_does_and_autoretry_leaves_it_alone(node):
    script(fail)
    run(calls_retry, "charge", "order-1")
    made = script()
    job = run(calls_park, "charge", "order-1")
    pk = Effect.objects.get().pk
    assert (job.state, job.retries, job.error["type"]) == ("failed", 0, "EffectParked")
    for words in (KEY, f"manage.py jobs effects {pk} --happened", "--not-happened", f"jobs retry {job.pk}", "admin"):
        assert words in job.error["message"]
    # It stays so, for whoever comes, whatever the policy.
    assert run(calls_retry, "charge", "order-1").error["type"] == "EffectParked"
    assert run_again(job).error["type"] == "EffectParked"
    assert made == []
    say("--not-happened")
    assert run_again(job).result == {"id": 1}
    assert made == [KEY]


def test_provider_that_knows_nothing_is_called(node):
    script(fail)
    run(calls_resolve, "charge", "order-1")
    made = script(resolve=lambda call: None)
    job = run(calls_resolve, "charge", "order-1")
    assert (job.result, made, Effect.objects.get().calls) == ({"id": 1}, [KEY], 1)


def test_provider_that_cannot_be_asked_leaves_the_call_ambiguous(node):
    script(fail)
    run(calls_resolve, "charge", "order-1")
    made = script(resolve=fail)
    job = run(calls_resolve, "charge", "order-1")
    assert (job.state, job.error["type"], made, status()) == ("failed", "Unreachable", [], "ambiguous")


def test_the_provider_may_be_asked_by_a_method(node, declare):
    class Client:
        def find(self, call):
            return {"id": f"asked for {call.key}"}

    made = []

    def body():
        with effect_of("charge", "order-1") as call:
            if not call.done:
                made.append(call.key)
                raise Unreachable

    job = run(declare(body=body, atomic=False, on_ambiguous=Client().find, max_retries=0))
    assert (job.state, run_again(job).state, made) == ("failed", "succeeded", [KEY])


def test_not_sent_forgets_the_call(node):
    def refused(call):
        call.not_sent()
        raise Snooze(0)

    script(refused)
    job = run(calls_resolve, "charge", "order-1")
    assert job.state == "scheduled"
    assert not Effect.objects.exists()


def test_not_sent_says_nothing_of_an_earlier_call(node):
    script(fail)
    run(calls_retry, "charge", "order-1")
    script(lambda call: call.not_sent())
    assert run(calls_retry, "charge", "order-1").state == "succeeded"
    assert (status(), Effect.objects.get().calls) == ("ambiguous", 1)


def test_exception_after_the_answer_does_not_make_the_call_again(node):
    def block(call):
        call.answered({"id": 1})
        raise Unreachable

    made = script(block)
    job = run(calls_retry, "charge", "order-1")
    assert (job.state, status()) == ("failed", "sent")
    assert run_again(job).result == {"id": 1}
    assert made == [KEY]


def test_a_time_limit_while_the_answer_is_written_forgets_it_no_more(node, monkeypatch):
    """The call has happened. Without its answer it would be made again."""
    real, struck = persistently, []

    def strike(run, action):
        if not struck:
            struck.append(1)
            raise SoftTimeLimitExceeded
        return real(run, action)

    monkeypatch.setattr("jobs.contrib.effects.ledger.persistently", strike)
    made = script()
    job = run(calls_retry, "charge", "order-1")
    assert (job.state, status()) == ("failed", "sent")
    assert run_again(job).result == {"id": 1}
    assert made == [KEY]


@shared_task(atomic=False)
def calls_again(*parts):
    try:
        return scripted.run(parts)
    except ConnectionError:
        return scripted.run(parts)


def test_second_block_of_the_same_run_is_ambiguous_too(node):
    def first(call):
        script(lambda call: call.answered("second"))
        raise ConnectionError

    script(first)
    assert run(calls_again, "charge", "order-1").result == "second"
    assert (Effect.objects.get().calls, status()) == (2, "sent")


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (object(), "TypeError", "response.json()"),
        ({1, 2}, "TypeError", "sorted list"),
        ("\0", "ValueError", "NUL"),
    ],
)
@pytest.mark.parametrize("policy", ["retry", "resolve"])
def test_answer_that_is_not_json_is_an_error_and_the_call_is_not_made_again(node, policy, answer, error, says):
    made = script(lambda call: call.answered(answer))
    job = run(CALLS[policy], "charge", "order-1")
    row = Effect.objects.get()
    assert (job.state, job.error["type"]) == ("failed", error)
    for words in (says, "HAS happened", f"jobs effects {row.pk} --happened --answer JSON"):
        assert words in job.error["message"]
    assert row.state == "parked"
    assert row.sent_at is not None
    assert row.answer
    job = run_again(job)
    assert job.error["type"] == "EffectParked"
    assert "its answer could not be kept" in job.error["message"]
    assert made == [KEY]
    say("--happened", "--answer", '{"id": 7}')
    assert run_again(job).result == {"id": 7}
    assert made == [KEY]


@shared_task
def calls_in_transaction(*parts):
    return scripted.run(parts)


def test_in_a_transaction_it_raises_at_once_with_the_cure(node):
    made = script()
    job = run(calls_in_transaction, "charge", "order-1")
    assert (job.state, job.error["type"]) == ("failed", "TransactionManagementError")
    assert "atomic=False" in job.error["message"]
    assert made == []
    assert not Effect.objects.exists()


def test_outside_of_a_job_it_raises_with_the_cure():
    with pytest.raises(RuntimeError, match="delay|worker runs"), effect("charge", 1):
        pass
    assert isinstance(calls_retry.apply(("charge", 1)).result, RuntimeError)


@shared_task(atomic=False)
def calls_a_task_that_calls(*parts):
    return calls_retry(*parts)


def test_task_called_as_a_function_calls_for_the_job_that_runs(node):
    made = script()
    job = run(calls_a_task_that_calls, "charge", "order-1")
    assert (job.state, made, Effect.objects.get().job) == ("succeeded", [KEY], job.pk)


def test_transaction_of_the_block_that_rolls_back_does_not_take_the_answer_along(node):
    def block(call):
        with transaction.atomic():
            call.answered({"id": 1})
            raise Unreachable

    script(block)
    run(calls_retry, "charge", "order-1")
    assert (status(), Effect.objects.get().answer) == ("sent", {"id": 1})


def test_transaction_of_the_block_that_commits_keeps_what_is_its_own(node):
    def block(call):
        with transaction.atomic():
            models.Effect.objects.create(key="own")
            call.answered({"id": 1})
            models.Effect.objects.create(key="own")

    script(block)
    assert run(calls_retry, "charge", "order-1").state == "succeeded"
    assert models.Effect.objects.filter(key="own").count() == 2
    assert (status(), Effect.objects.get().answer) == ("sent", {"id": 1})


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (lambda call: None, "did not say what became of the call"),
        (lambda call: (call.answered(1), call.answered(2)), "it was known already"),
        (lambda call: (call.not_sent(), call.answered(2)), "it was known already"),
        (lambda call: (call.answered(1), call.not_sent()), "it was known already"),
    ],
)
def test_block_that_says_nothing_or_contradicts_itself_is_an_error(node, block, says):
    script(block)
    job = run(calls_retry, "charge", "order-1")
    assert job.error["type"] == "RuntimeError"
    assert says in job.error["message"]


def test_call_in_spite_of_an_answer_is_an_error(node):
    script()
    run(calls_retry, "charge", "order-1")
    scripted.block = lambda call: call.answered("again")
    job = run(calls_retry, "charge", "order-1")
    assert "if not call.done" in job.error["message"]
    assert Effect.objects.get().answer == {"id": 1}


@pytest.mark.parametrize("point", ["after_claim", "before_call", "after_call"])
def test_zombie_writes_nothing(node, point):
    """Its job is claimed by another run at this very point."""
    made = script()

    def rob(reached):
        if reached == point:
            Job.objects.update(lease=2, token=2)

    syncpoints.arm(rob)
    run(calls_retry, "charge", "order-1")
    assert Job.objects.get().state == "running"
    if point == "after_claim":
        assert made == []
        assert not Effect.objects.exists()
    else:
        assert made == [KEY]
        row = Effect.objects.get()
        assert (row.state, row.lease, row.answer, row.sent_at) == ("sending", 1, None, None)


def test_run_that_loses_its_job_between_the_check_and_the_row_writes_nothing(node, monkeypatch):
    made = script()
    owns = transitions.owns

    def rob(job):
        owned = owns(job)
        Job.objects.update(lease=2, token=2)
        return owned

    monkeypatch.setattr(transitions, "owns", rob)
    run(calls_retry, "charge", "order-1")
    assert made == []
    assert not Effect.objects.exists()


@pytest.mark.parametrize("act", [lambda call: call.answered(1), lambda call: call.not_sent()])
def test_zombie_does_not_touch_the_row_of_its_successor(node, act):
    def block(call):
        Job.objects.update(lease=2, token=2)
        Effect.objects.update(lease=2)
        act(call)

    script(block)
    run(calls_retry, "charge", "order-1")
    assert (Effect.objects.get().state, Effect.objects.get().lease) == ("sending", 2)


def test_cancelled_job_makes_no_call_any_more(node):
    made = script()

    def cancel(reached):
        if reached == "after_claim":
            transitions.ask_to_end(Job.objects.get().pk, "default")

    syncpoints.arm(cancel)
    assert run(calls_retry, "charge", "order-1").state == "cancelled"
    assert made == []
    assert not Effect.objects.exists()


def test_the_database_may_be_away_for_a_moment_after_the_call(node, monkeypatch):
    made = script()
    hold, failures = transitions.hold, [OperationalError("gone"), OperationalError("gone")]

    def flaky(job):
        if made and failures:
            raise failures.pop()
        return hold(job)

    monkeypatch.setattr(transitions, "hold", flaky)
    assert run(calls_retry, "charge", "order-1").result == {"id": 1}
    assert (made, failures, status()) == ([KEY], [], "sent")


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (("charge",), "TypeError"),
        (("charge", ""), "ValueError"),
        (("charge", 1.5), "TypeError"),
        (("charge", "y" * 250), "ValueError"),
        (("", 1), "ValueError"),
        (("x" * 101, 1), "ValueError"),
    ],
)
def test_key_that_cannot_be_kept_raises_before_anything_is_written(node, parts, error):
    made = script()
    assert run(calls_retry, *parts).error["type"] == error
    assert made == []
    assert not Effect.objects.exists()


@pytest.mark.parametrize("policy", ["ask", None, 3])
def test_unknown_policy_is_refused_where_the_task_is_declared(policy):
    def bad():
        """Declared, and never added to the app's tasks."""

    with pytest.raises(ValueError, match="on_ambiguous.*must be 'retry', 'park' or a callable"):
        current_app.task(name=f"tests.bad_{policy}", on_ambiguous=policy, shared=False, lazy=False)(bad)
    current_app.tasks.pop(f"tests.bad_{policy}", None)


# The shop


def test_the_shop_charges_an_order_once(provider, settings, node):

    settings.PAYMENT_URL = provider.url
    order = place_order(Customer.objects.create(name="Ada", email="ada@example.com"), cents=1990)
    provider.die.touch()
    deliver(charge_order.AsyncResult(str(order.payment_job)))
    assert Job.objects.get(state__in=("scheduled", "ready")).error["type"] == "RemoteDisconnected"
    key = f"charge:{order.public_id}"
    assert status(str(order.public_id)) == "ambiguous"
    provider.start()
    Job.objects.update(state="ready")
    deliver(charge_order.AsyncResult(str(order.payment_job)))
    order.refresh_from_db()
    assert (provider.requests, provider.charges) == ({key: 2}, {key: 1})
    assert order.charge == payments_of(provider) == payments.find_charge(key)["id"]
    assert Event.objects.get().data["order"] == str(order.public_id), "told of once"


def test_the_shop_knows_when_nothing_was_charged(provider, settings, node):

    settings.PAYMENT_URL = provider.url
    order = place_order(Customer.objects.create(name="Ada", email="ada@example.com"), cents=1990)
    provider.stop()
    deliver(charge_order.AsyncResult(str(order.payment_job)))
    assert Job.objects.get(state__in=("scheduled", "ready")).error["type"] == "ConnectionRefusedError"
    assert not Effect.objects.exists()


@pytest.mark.parametrize(("code", "kept", "state"), [(402, 0, "failed"), (409, 1, "retried"), (500, 1, "retried")])
def test_the_shop_takes_only_a_refusal_for_a_payment_that_did_not_happen(node, monkeypatch, code, kept, state):
    order = place_order(Customer.objects.create(name="Ada", email="ada@example.com"), cents=1990)
    monkeypatch.setattr(payments, "_request", lambda *args: (code, {"error": "no"}))
    deliver(charge_order.AsyncResult(str(order.payment_job)))
    job = Job.objects.get()
    assert ("failed" if job.state == "failed" else "retried") == state
    assert Effect.objects.count() == kept
