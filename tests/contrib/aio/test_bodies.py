"""What an ``async def`` body is: the same task, calls, signals and ends as every other, with its commit at its end."""

from __future__ import annotations

import asyncio
import datetime
import os
import threading
from importlib.util import find_spec  # noqa: F401

import pytest
from asgiref.sync import async_to_sync, markcoroutinefunction, sync_to_async
from celery import chain, current_app, shared_task, signals
from celery.exceptions import Reject, SoftTimeLimitExceeded
from django.db import IntegrityError, connection, connections
from django.utils import timezone

import jobs
from jobs import Cancel, EffectParked, Snooze, Task
from jobs.lifecycle.run import current_job, current_run, on_thread
from jobs.models import Job, Marker
from jobs.store import databases
from jobs.testing import run_jobs
from jobs.worker.runner import let_go
from tests.helpers.concurrency import end_session
from tests.helpers.harness import effects, run_ready
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.usefixtures("node")]


def save(key, note=""):
    assert connection.in_atomic_block
    Effect.objects.create(key=key, pid=os.getpid(), note=note)
    return f"saved {key}"


@shared_task(bind=True)
async def saves(self, key):
    await asyncio.sleep(0)
    assert not await sync_to_async(databases.in_transaction)("default")
    return self.commit(save, key, note=str(await Effect.objects.acount()))


@shared_task
async def returns(value):
    await asyncio.sleep(0)
    return value


def ended(task, *args, **kwargs):
    result = task.delay(*args, **kwargs)
    run_ready()
    return Job.objects.get(pk=result.id)


def test_what_it_commits_is_one_commit_with_its_completion():
    job = ended(saves, "a")
    assert (job.state, job.result, job.lease) == ("succeeded", "saved a", 1)
    assert effects() == {"a": 1}


calls = []


@shared_task(bind=True)
async def saves_late(self, key):
    calls.append(key)
    await on_thread(end_session)
    return self.commit(save, key)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="no server ends a connection")
def test_what_was_awaited_is_not_awaited_again_because_the_session_ended():
    calls.clear()
    job = ended(saves_late, "a")
    assert (job.state, job.lease, job.node_losses) == ("succeeded", 1, 0)
    assert (effects(), calls) == ({"a": 1}, ["a"])


def test_a_plain_value_is_the_completion_alone():
    job = ended(returns, {"n": 1})
    assert (job.state, job.result) == ("succeeded", {"n": 1})


def test_run_jobs_runs_it(case):
    saves.delay("a")
    assert run_jobs().states == {"succeeded": 1}
    assert effects() == {"a": 1}


def test_run_jobs_raises_what_it_raised(case):
    raises.delay()
    with pytest.raises(ValueError, match="no"):
        run_jobs()
    assert effects() == {}


@shared_task(bind=True)
async def raises(self):
    await sync_to_async(Effect.objects.create)(key="outside")
    await Effect.objects.all().adelete()
    raise ValueError("no")


def fail(key):
    save(key)
    raise ValueError("in the commit")


@shared_task(bind=True)
async def commits(self, name, *args):
    return self.commit(globals()[name], *args)


def test_a_commit_that_raises_rolls_back():
    job = ended(commits, "fail", "a")
    assert (job.state, job.error["type"], job.error["message"]) == ("failed", "ValueError", "in the commit")
    assert effects() == {}


def hide_the_row(key):
    save(key)
    Job.objects.update(lease=7)


def test_a_commit_that_does_not_find_the_row_rolls_back():
    job = ended(commits, "hide_the_row", "a")
    assert (job.state, job.lease) == ("failed", 1)
    assert effects() == {}


def in_vain(key):
    Effect.objects.create(key=key)
    Job.objects.create(pk=Job.objects.get().pk, task="x")


def test_what_the_database_refuses_in_the_commit_is_a_failure():
    job = ended(commits, "in_vain", "a")
    assert (job.state, job.error["type"]) == ("failed", IntegrityError.__name__)
    assert effects() == {}


def nothing():
    return None


async def waits():
    return None


@shared_task(bind=True)
async def commits_nothing(self):
    return self.commit()


def test_a_commit_of_nothing_is_the_completion_alone():
    job = ended(commits_nothing)
    assert (job.state, job.result, job.error) == ("succeeded", None, None)


@shared_task(bind=True)
async def forgets(self, key):
    self.commit(save, key)


@shared_task(bind=True)
def forgets_too(self, key):
    self.commit(save, key)
    return key


@pytest.mark.parametrize("task", [forgets, forgets_too], ids=["async", "plain"])
def test_what_is_to_be_committed_and_not_returned_fails_the_body(task):
    job = ended(task, "a")
    assert (job.state, job.error["type"], effects()) == ("failed", "TypeError", {})
    assert "did not return what self.commit() gave it" in job.error["message"]


class CallsItself(Task):
    abstract = True

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


@shared_task(bind=True, base=CallsItself)
def commits_in_own_call(self, key):
    return self.commit(save, key)


@shared_task(bind=True)
def calls_itself(self, key, depth=1):
    if depth:
        self(key, depth - 1)
        return "outer"
    return self.commit(save, key)


@shared_task(bind=True)
async def awaits_itself(self, key, depth=1):
    if depth:
        await self(key, depth - 1)
        return "outer"
    return self.commit(save, key)


@shared_task(bind=True)
async def chooses(self, key):
    good, _ = self.commit(save, key), self.commit(save, "other")
    return good


@pytest.mark.parametrize(
    "task", [commits_in_own_call, calls_itself, awaits_itself, chooses], ids=lambda task: task.name
)
def test_what_was_committed_by_another_way_fails_nobody(task):
    job = ended(task, "a")
    assert (job.state, effects()) == ("succeeded", {"a": 1})


@shared_task(bind=True, atomic=False)
def commits_nothing_bare(self):
    return self.commit()


def test_a_commit_of_nothing_needs_no_transaction():
    assert ended(commits_nothing_bare).state == "succeeded"


@pytest.mark.parametrize(("function", "says"), [("waits", "await before"), ("__name__", "plain function")])
def test_what_cannot_be_committed_says_so(function, says):
    job = ended(commits, function)
    assert (job.state, job.error["type"]) == ("failed", "TypeError")
    assert says in job.error["message"]


@shared_task(bind=True)
def plain(self, key):
    return self.commit(save, key)


@shared_task(bind=True, atomic=False)
def bare(self, key):
    return self.commit(save, key)


def test_a_plain_body_may_commit_in_its_own_transaction():
    assert ended(plain, "a").result == "saved a"
    assert effects() == {"a": 1}
    assert plain("b") == "saved b"


def test_a_plain_body_without_a_transaction_cannot():
    job = ended(bare, "a")
    assert (job.state, job.error["type"], effects()) == ("failed", "TypeError", {})
    assert "async def" in job.error["message"]


# Declared


def test_atomic_true_says_what_to_write_instead(declare):
    with pytest.raises(TypeError, match=r"self\.commit\(function"):
        declare(body=waits, atomic=True)


@pytest.mark.parametrize("options", [{}, {"atomic": False}])
def test_it_is_the_commit_form_whatever_else_is_said(declare, options):
    task = declare(body=commit_of_its_own, bind=True, **options)
    assert ended(task, "a").result == "saved a"


async def commit_of_its_own(self, key):
    return self.commit(save, key)


async def yields():
    yield 1


def test_a_body_that_yields_is_no_task(declare):
    with pytest.raises(TypeError, match="return a list"):
        declare(body=yields)


async def returns_a_coroutine():
    return waits()


def test_what_has_yet_to_be_awaited_is_an_error(declare):
    job = ended(declare(body=returns_a_coroutine))
    assert (job.state, job.error["type"]) == ("failed", "TypeError")
    assert "nobody awaits" in job.error["message"]


class Registered(Task):
    name = "tests.aio.registered"

    async def run(self, key):
        return self.commit(save, f"{key}:{self.request.id == str(self.job.pk)}")


class Inherits(Registered):
    name = "tests.aio.inherits"


class Overrides(Registered):
    name = "tests.aio.overrides"

    def run(self, key):
        return save(key)


def test_a_class_that_was_registered_and_those_that_inherit_from_it():
    try:
        for number, kind in enumerate((Registered, Inherits, Overrides)):
            task = current_app.register_task(kind())
            assert ended(task, str(number)).state == "succeeded"
        assert effects() == {"0:True": 1, "1:True": 1, "2": 1}
    finally:
        for kind in (Registered, Inherits, Overrides):
            current_app.tasks.pop(kind.name, None)


class CallsRun(Task):
    abstract = True

    def __call__(self, *args, **kwargs):
        called.append(args)
        return self.run(*args, **kwargs)


class AwaitsRun(Task):
    abstract = True

    async def __call__(self, *args, **kwargs):
        called.append(args)
        return await self.run(*args, **kwargs)


called: list[object] = []


@pytest.mark.parametrize("base", [CallsRun, AwaitsRun])
def test_a_call_of_its_own_is_part_of_the_body(declare, base):
    called.clear()
    job = ended(declare(base, body=commit_of_its_own, bind=True), "a")
    assert (job.state, job.result, called) == ("succeeded", "saved a", [("a",)])


# Plain calls


def test_a_direct_call_is_the_coroutine():
    assert asyncio.run(returns(5)) == 5

    async def call():
        return await saves("a")

    assert async_to_sync(call)() == "saved a"
    assert not Job.objects.exists()


def test_apply_runs_it():
    assert returns.apply((5,)).get() == 5
    assert saves.apply(("a",)).get() == "saved a"
    assert effects() == {"a": 1}


@shared_task(bind=True)
async def counts_down(self, n):
    return [n, *(await self(n - 1))] if n else []


def test_a_body_that_calls_itself_is_one_run():
    assert ended(counts_down, 3).result == [3, 2, 1]


# What a body asks for


@shared_task(bind=True, max_retries=2)
async def asks(self, what):
    await asyncio.sleep(0)
    if what == "retry":
        raise self.retry(countdown=0)
    if what == "retry, and return":
        self.retry(countdown=0, throw=False)
        return "nothing"
    if what == "replace":
        return self.replace(returns.s("replaced"))
    raise {"snooze": Snooze(60), "cancel": Cancel("left"), "reject": Reject("no", requeue=False)}[what]


@pytest.mark.parametrize(
    ("what", "state", "counts"),
    [
        ("retry", "failed", {"retries": 2, "lease": 3}),
        ("retry, and return", "failed", {"retries": 2, "lease": 3}),
        ("snooze", "scheduled", {"snoozes": 1, "retries": 0}),
        ("cancel", "cancelled", {}),
        ("reject", "failed", {}),
    ],
)
def test_its_ends_are_those_of_every_body(what, state, counts):
    job = ended(asks, what)
    assert job.state == state
    assert {name: getattr(job, name) for name in counts} == counts


def test_it_may_be_replaced():
    result = asks.delay("replace")
    run_ready()
    assert Job.objects.get(pk=result.id).state == "succeeded"
    assert list(Job.objects.values_list("result", flat=True).filter(task=returns.name)) == ["replaced"]


@shared_task(autoretry_for=(OSError,), max_retries=1, default_retry_delay=0, retry_backoff=False)
async def fails_with(name):
    raise {"OSError": OSError, "KeyError": KeyError}[name]("down")


@pytest.mark.parametrize(("name", "leases"), [("OSError", 2), ("KeyError", 1)])
def test_autoretry_sees_what_a_coroutine_raised(name, leases):
    result = fails_with.delay(name)
    for _ in range(3):
        Job.objects.filter(state="scheduled").update(state="ready")
        run_ready()
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.lease, job.error["type"]) == ("failed", leases, name)


@shared_task(idempotency_key="sum:{key}", bind=True)
async def once_only(self, key):
    ran.append(key)
    return self.commit(save, key)


ran: list[str] = []


def test_an_idempotency_key_keeps_the_second_body_from_running():
    ran.clear()
    assert ended(once_only, "a").result == "saved a"
    assert ended(once_only, "a").result == "saved a"
    assert (ran, effects(), Marker.objects.count()) == (["a"], {"a": 1}, 1)


@shared_task(idempotency_key="bad:{key}", bind=True)
async def fails_once(self, key):
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.commit(save, key)


def test_a_body_that_fails_leaves_no_marker():
    assert ended(fails_once, "a").result == "saved a"
    assert (effects(), Marker.objects.count()) == ({"a": 1}, 1)


# What it sees


@shared_task(bind=True)
async def sees(self):
    async def child():
        await asyncio.sleep(0)
        return self.request.id, str(current_job().pk), current_app.current_task.name

    own = await asyncio.gather(child(), child())
    thread = await sync_to_async(lambda: (self.request.id, str(current_job().pk), current_app.current_task.name))()
    called = await returns.adelay(1)
    return [*map(list, own), list(thread), called.id]


def test_its_context_is_its_own_in_tasks_and_threads_too():
    job = ended(sees)
    *found, called = job.result
    assert found == [[str(job.pk), str(job.pk), sees.name]] * 3
    assert Job.objects.get(pk=called).parent_id == job.pk


def test_celery_hears_of_it_as_of_every_task():
    heard = []

    def hear(name):
        def handler(sender=None, **kwargs):
            heard.append((name, sender.name))

        return handler

    handlers = [hear("prerun"), hear("success"), hear("postrun")]
    for signal, handler in zip(
        (signals.task_prerun, signals.task_success, signals.task_postrun), handlers, strict=True
    ):
        signal.connect(handler, weak=False)
    try:
        ended(returns, 1)
    finally:
        for signal, handler in zip(
            (signals.task_prerun, signals.task_success, signals.task_postrun), handlers, strict=True
        ):
            signal.disconnect(handler)
    assert heard == [(name, returns.name) for name in ("prerun", "success", "postrun")]


@shared_task(bind=True, max_retries=1)
async def tries_twice(self):
    await asyncio.sleep(0)
    try:
        raise LookupError("the first one")
    except LookupError as exc:
        raise self.retry(exc=exc, countdown=0) from None


def test_celery_hears_of_its_retry_and_its_failure():
    heard = []

    def retried(sender=None, request=None, reason=None, einfo=None, **kwargs):
        heard.append(("retry", sender.name, request.id, str(reason)))

    def failed(sender=None, task_id=None, exception=None, **kwargs):
        heard.append(("failure", sender.name, task_id, repr(exception)))

    signals.task_retry.connect(retried)
    signals.task_failure.connect(failed)
    try:
        result = tries_twice.delay()
        run_ready()
        run_ready()
    finally:
        signals.task_retry.disconnect(retried)
        signals.task_failure.disconnect(failed)
    kind, name, key, why = heard[0]
    assert (kind, name, key) == ("retry", tries_twice.name, result.id)
    assert "the first one" in why
    assert heard[1:] == [("failure", tries_twice.name, result.id, repr(LookupError("the first one")))]


@shared_task(bind=True)
async def progresses(self):
    self.progress(1, 2, "half")
    return connections["default"].vendor


def test_it_says_how_far_it_is():
    assert ended(progresses).state == "succeeded"


@shared_task(bind=True)
async def empties(self, keys):
    return self.commit(take_all, keys)


def take_all(keys):
    taken = [keys.pop() for _ in list(keys)]
    if not ran:
        ran.append("a deadlock")
        raise LookupError("a deadlock")
    return taken


@shared_task(bind=True, max_retries=1)
async def plans_a_retry(self, ran):
    ran = [] if self.request.retries else ["a deadlock"]
    if not self.request.retries:
        self.retry(throw=False, countdown=0)
    return self.commit(meets_a_deadlock_once, ran)


MET: list[str] = []


def meets_a_deadlock_once(ran):
    MET.extend(ran)
    if ran and len(MET) == 1:
        raise LookupError("a deadlock")
    save("a")


def test_a_conflict_does_not_forget_the_retry_that_was_planned(monkeypatch):
    MET.clear()
    monkeypatch.setattr("jobs.store.databases.is_conflict", lambda exc: isinstance(exc, LookupError))
    job = ended(plans_a_retry, [])
    assert (job.state, job.retries, effects(), len(MET)) == ("succeeded", 1, {"a": 1}, 2)


def test_a_conflict_runs_the_commit_again_with_what_it_was_given(monkeypatch):
    monkeypatch.setattr("jobs.store.databases.is_conflict", lambda exc: isinstance(exc, LookupError))
    ran.clear()
    assert ended(empties, ["a", "b"]).result == ["b", "a"]


@shared_task
async def is_struck_while_its_progress_is_written():
    awaited, loop = vars(current_run())["awaited"], asyncio.get_running_loop()
    awaited._aside_calls.append(asyncio.ensure_future(asyncio.sleep(30)))
    loop.call_later(0.05, awaited.strike, SoftTimeLimitExceeded())


def test_a_soft_limit_after_the_body_is_one():
    assert ended(is_struck_while_its_progress_is_written).error["type"] == "SoftTimeLimitExceeded"


# Beside other extensions


with_ledger = pytest.mark.skipif("not find_spec('jobs.contrib.effects')", reason="the ledger is an extension")


@shared_task(bind=True, max_retries=1)
async def pays(self, key):
    async with jobs.effect("charge", key) as call:
        if not call.done:
            ran.append(call.key)
            await asyncio.sleep(0)
            call.answered({"id": len(ran)})
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return self.commit(save, f"{key}:{call.answer['id']}")


@with_ledger
def test_a_call_through_the_ledger_is_made_once():
    ran.clear()
    result = pays.delay("a")
    run_ready()
    run_ready()
    assert Job.objects.get(pk=result.id).state == "succeeded"
    assert (ran, effects()) == (["charge:a"], {"a:1": 1})


@shared_task
async def says_nothing():
    async with jobs.effect("charge", "b"):
        await asyncio.sleep(0)


@with_ledger
def test_a_call_of_which_nothing_is_said_is_an_error():
    job = ended(says_nothing)
    assert (job.state, job.error["type"]) == ("failed", "RuntimeError")
    assert "did not say what became of the call" in job.error["message"]


@shared_task
async def answers_no_json():
    async with jobs.effect("charge", "c") as call:
        await asyncio.sleep(0)
        call.answered(object())


@with_ledger
def test_an_answer_that_cannot_be_kept_parks_the_call():
    from jobs.contrib.effects.models import Effect as Call

    job = ended(answers_no_json)
    assert (job.state, job.error["type"]) == ("failed", "TypeError")
    assert "HAS happened and is parked" in job.error["message"]
    assert Call.objects.get(key="c").state == "parked"


@shared_task(bind=True, durable=True)
async def goes_on(self, key):
    saved = await self.astep("save", save, key)
    await self.asleep(60)
    ran.append(key)
    return saved


@pytest.mark.skipif("not find_spec('jobs.contrib.durable')", reason="durable tasks are an extension")
def test_a_durable_one_goes_on_where_it_waited():
    ran.clear()
    result = goes_on.delay("a")
    assert run_jobs().states == {"scheduled": 1}
    assert (effects(), ran) == ({"a": 1}, [])
    run_jobs(until=timezone.now() + datetime.timedelta(minutes=2))
    job = Job.objects.get(pk=result.id)
    assert (job.state, job.result, effects(), ran) == ("succeeded", "saved a", {"a": 1}, ["a"])


def test_what_a_run_raised_ends_no_coroutine_that_met_it_as_well():
    error = LookupError("of a client that two bodies share")

    async def body():
        try:
            raise error
        except LookupError:
            await asyncio.sleep(0)
        return "went on"

    steps = body().__await__()
    next(steps)
    let_go(error)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == "went on"


@shared_task(bind=True)
async def snoozes_in_a_group(self):
    async def part():
        raise Snooze(60)

    async with asyncio.TaskGroup() as group:
        group.create_task(part())


@shared_task(bind=True)
async def fails_for_good_in_a_group(self):
    async def part():
        raise EffectParked("a person decides")

    async with asyncio.TaskGroup() as group:
        group.create_task(part())


def test_a_task_group_hands_on_what_its_tasks_ask_for(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [1, 2]}
    assert (ended(snoozes_in_a_group).state, ended(fails_for_good_in_a_group).state) == ("scheduled", "failed")


class Passing(Exception):
    pass


FAILS: list[Exception] = []


def save_later(key):
    save(key)
    if FAILS:
        raise FAILS.pop()
    return "saved"


@shared_task(bind=True, autoretry_for=(Passing,), default_retry_delay=0)
async def retries_its_commit(self, key):
    return self.commit(save_later, key)


def test_autoretry_holds_for_what_is_committed():
    FAILS.append(Passing())
    job = ended(retries_its_commit, "a")
    assert (job.state, job.retries, job.result, effects()) == ("succeeded", 1, "saved", {"a": 1})


@shared_task(bind=True)
async def commits_a_lock(self):
    return self.commit(save, threading.Lock())


def test_what_cannot_be_copied_says_so():
    assert "pass it plain values" in ended(commits_a_lock).error["message"]


@shared_task(bind=True)
async def stops_its_chain(self):
    self.request.chain = self.request.callbacks = None


def test_a_coroutine_says_what_does_not_follow_it():
    chain(stops_its_chain.si(), returns.si(1)).delay()
    run_ready()
    assert [job.task for job in Job.objects.all()] == [stops_its_chain.name]


@pytest.mark.parametrize("option", ["on_ambiguous", "pydantic"])
def test_options_for_plain_bodies_are_refused(option):
    async def ask(call):
        return None

    async def validated(self, number: int):
        return number

    options = {"name": f"tests.aio.refused_{option}", option: ask if option == "on_ambiguous" else True}
    with pytest.raises(TypeError, match="plain"):
        current_app.task(bind=True, shared=False, lazy=False, **options)(validated)


@shared_task
async def takes_any(function, step, **more):
    return [function, step, more]


def test_its_arguments_may_have_any_name():
    assert ended(takes_any, function="f", step=1, run=2).result == ["f", 1, {"run": 2}]
    assert takes_any.apply(kwargs={"function": "f", "step": 1}).get() == ["f", 1, {}]

    async def calls():
        return await takes_any(function="f", step=1)

    assert async_to_sync(calls)() == ["f", 1, {}]


def test_a_function_that_returns_a_coroutine_is_a_body(declare):
    """A decorator of the project made it, and said so."""

    def body(user_id):
        return asyncio.sleep(0, user_id)

    assert ended(declare(body=markcoroutinefunction(body)), 5).result == 5
