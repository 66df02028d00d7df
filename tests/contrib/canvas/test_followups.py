"""What follows a job is written in the commit that ends it: links, chains, groups, chords, errbacks, replacements."""

from __future__ import annotations

import datetime
import os
import signal
import time
import uuid
from collections import Counter
from contextlib import nullcontext
from decimal import Decimal

import pytest
from celery import chain, chord, group, shared_task, signals
from django.db import connections, transaction

from jobs import Cancel, Task
from jobs.conf import syncpoints
from jobs.contrib.canvas import chords
from jobs.contrib.canvas.models import Chord, ChordPart
from jobs.contrib.operations import by_hand
from jobs.lifecycle import transitions
from jobs.models import Job
from tests import tasks
from tests.helpers.harness import (
    Worker,
    claim,
    effects,
    run,
    run_ready,
    wait_ended,
)
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

effect, fails, gather, passes = tasks.effect, tasks.fails, tasks.gather, tasks.passes


def states():
    return Counter(Job.objects.exclude(task="jobs.ended").values_list("state", flat=True))


def killed_at(point, key):
    """A process is killed at the point while it runs the job; then it is rescued."""
    connections.close_all()
    if (child := os.fork()) == 0:
        try:
            syncpoints.arm(lambda reached: reached == point and os.kill(os.getpid(), signal.SIGKILL))
            run(claim(key))
        finally:
            os._exit(1)
    # What calls nobody rings nobody.
    assert os.waitpid(child, 0)[1] == signal.SIGKILL or point == "before_notify"
    transitions.finish_running(uuid.UUID(key), "default", lambda job: transitions.hand_back(job, 0))


def test_the_next_step_is_written_in_the_commit_of_the_one_before(node):
    first = chain(passes.s("a"), effect.s()).apply_async().parent
    killed_at("before_commit", first.id)
    assert Job.objects.count() == 1
    killed_at("after_commit", first.id)
    assert Job.objects.count() == 2
    run_ready()
    assert effects() == {"a": 1}
    assert states() == {"succeeded": 2}


def test_follow_ups_know_where_they_come_from(node):
    last = chain(passes.si(1), passes.si(2), passes.si(3)).apply_async()
    run_ready()
    third, second, first = (Job.objects.get(pk=each.id) for each in (last, last.parent, last.parent.parent))
    assert (first.parent_id, second.parent_id, third.parent_id) == (None, first.pk, second.pk)
    assert {job.root_id for job in (first, second, third)} == {first.pk}


def test_links_run_once_each_with_the_result(node):
    passes.apply_async(("a",), link=[effect.s(), effect.si("b"), group(effect.si("c"), effect.si("d"))])
    run_ready()
    assert effects() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_follow_up_that_cannot_be_called_fails_the_job_and_not_only_the_chain(node):
    chain(tasks.returns_object.si(), passes.s()).apply_async()
    run_ready()
    job = Job.objects.get(task="tests.tasks.returns_object")
    assert (job.state, Job.objects.exclude(task="jobs.ended").count()) == ("failed", 1)
    assert "which a job cannot carry" in job.error["message"]


TYPES = [
    datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 2),
    datetime.timedelta(days=1, seconds=2),
    Decimal("1.10"),
    uuid.UUID(int=7),
    b"bytes",
]


@shared_task
def shows_type(value):
    Effect.objects.create(key="type", note=repr(value))


@pytest.mark.parametrize("value", TYPES, ids=lambda value: type(value).__name__)
def test_types_survive_the_way_along_a_chain(node, value):
    chain(passes.s(value), passes.s(), shows_type.s(), link_error=fails.si("x")).apply_async()
    run_ready()
    assert [repr(value)] == list(Effect.objects.values_list("note", flat=True))


@shared_task(atomic=False)
def effect_by_itself(key):
    Effect.objects.create(key=key)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_body_without_a_transaction_has_one_for_what_follows(node, atomic):
    task = effect if atomic else effect_by_itself
    task.apply_async(("a",), link=effect.si("b"))
    run_ready()
    assert effects() == {"a": 1, "b": 1}


@shared_task(bind=True)
def stops_its_chain(self):
    self.request.chain = None


def test_a_body_may_stop_its_chain(node):
    chain(stops_its_chain.si(), effect.si("b")).apply_async()
    run_ready()
    assert effects() == {}
    assert states() == {"succeeded": 1}


def test_a_stock_task_is_sent_after_the_commit_by_a_job(node, settings):
    settings.JOBS = {**settings.JOBS, "EXCLUDE": ["tests.tasks.noop"]}
    sent = []
    result = passes.apply_async((1,), link=tasks.noop.s(2))

    def note(sender, headers, body, **kwargs):
        sent.append((sender, body[0], headers["parent_id"]))

    signals.before_task_publish.connect(note)
    try:
        killed_at("after_commit", result.id)
        assert sent == []
        run_ready()
    finally:
        signals.before_task_publish.disconnect(note)
    assert sent == [("tests.tasks.noop", [1, 2], result.id)]
    assert list(Job.objects.exclude(pk=result.id).values_list("task", "state")) == [("jobs.send", "succeeded")]


# Errbacks


@shared_task(bind=True)
def fails_always(self, key, times):
    raise self.retry(exc=LookupError(key), max_retries=times, countdown=0.01)


@shared_task
def errback_of_three(request, exc, traceback):
    Effect.objects.create(key=request.id, note=repr(exc))


@shared_task
def errback_of_one(key):
    Effect.objects.create(key=key)


@pytest.mark.parametrize("new_style", [True, False])
def test_an_errback_is_called_once_and_only_after_the_last_attempt(node, new_style):
    errback = errback_of_three.s() if new_style else errback_of_one.s()
    result = fails_always.apply_async(("a", 2), link_error=errback)
    for _ in range(2):
        run(claim(result.id))
        Job.objects.filter(pk=result.id).update(run_at="2026-01-01T00:00Z")
        transitions.make_due("default", 10)
        assert effects() == {}
    run_ready()
    assert effects() == {result.id: 1}
    if new_style:
        assert Effect.objects.get().note == "LookupError('a')"


def end_expired(job):
    Job.objects.filter(pk=job.pk).update(expires_at="2026-01-01T00:00Z")
    transitions.expire("default", 10)


def end_by_hand(job):
    transitions.cancel(job.pk, "default")


def end_running(job):
    claimed = claim(job.pk)
    transitions.ask_to_end(job.pk, "default")
    run(claimed)


def end_crashed(job):
    for _ in range(3):
        transitions.crash(claim(job.pk), transitions.error_entry("WorkerLost", "killed"), 3)
        Job.objects.filter(pk=job.pk, state="scheduled").update(state="ready")


@pytest.mark.parametrize("end", [end_expired, end_by_hand, end_running, end_crashed])
def test_whoever_ends_a_job_its_errbacks_hear_of_it(node, end):
    result = passes.apply_async((1,), link_error=errback_of_one.s())
    end(Job.objects.get())
    run_ready()
    assert effects() == {result.id: 1}


def test_a_job_that_is_run_again_before_its_errbacks_heard_of_it_has_not_failed(node):
    result = passes.apply_async((1,), link_error=errback_of_one.s())
    transitions.cancel(Job.objects.get().pk, "default")
    by_hand.retry_by_hand(Job.objects.get(pk=result.id).pk, "default")
    run(claim(Job.objects.get(task="jobs.ended").pk))
    assert effects() == {}
    run_ready()
    assert effects() == {}
    assert states() == {"succeeded": 1}


@shared_task
def cancels_itself():
    raise Cancel("no need")


def test_a_body_that_cancels_itself_calls_no_errback(node):
    cancels_itself.apply_async(link_error=errback_of_one.s())
    run_ready()
    assert effects() == {}


# Chords


def test_the_body_of_a_chord_gets_the_results_in_the_order_of_the_header(node):
    result = chord([passes.s(n) for n in (3, 1, 2)], gather.s("body")).apply_async()
    for job in Job.objects.order_by("-pk"):
        run(claim(job.pk))
    run_ready()
    assert Job.objects.get(pk=result.id).result == [3, 1, 2]
    assert (Chord.objects.count(), ChordPart.objects.count()) == (0, 0)


def test_groups_and_chains_and_chords_in_a_header(node):
    header = [
        passes.s(0),
        group(passes.s(1), chain(passes.s(2), passes.s())),
        chord([passes.s(3), passes.s(4)], passes.s()),
    ]
    result = chord(header, gather.s("body")).apply_async()
    run_ready()
    # Celery unrolls a group in a header, from its end.
    assert Job.objects.get(pk=result.id).result == [0, 2, 1, [3, 4]]


def test_a_group_in_a_chain_and_a_task_after_it_are_a_chord(node):
    result = chain(passes.s(1), group(passes.s(), passes.s()), gather.s("body"), passes.s()).apply_async()
    run_ready()
    assert Job.objects.get(pk=result.id).result == [1, 1]
    assert effects() == {"body": 1}


def test_a_part_that_fails_calls_the_errback_of_the_body_once(node):
    header = [passes.s(1), fails.s("x"), fails.s("y"), chain(fails.s("z"), passes.s())]
    body = gather.s("body").on_error(effect.si("errback"))
    chord(header, body).apply_async()
    run_ready()
    assert effects() == {"errback": 1}


def nested_chord(how):
    inner = gather.s("inner")
    if how == "body chain":
        inner = chain(inner, passes.s())
    if how == "replaced":
        return replaced_by_a_group.s()
    return chord([passes.s(1), fails.s("x")], inner)


@shared_task(bind=True)
def replaced_by_a_group(self):
    raise self.replace(group(passes.s(1), fails.s("x")))


@pytest.mark.parametrize("how", ["chord", "body chain", "replaced"])
def test_a_chord_in_a_chord_that_fails_fails_the_outer_one_too(node, how):
    """Nobody else would count its body, which is never called."""
    header = [passes.s(1), nested_chord(how)]
    chord(header, gather.s("outer").on_error(effect.si("errback"))).apply_async()
    run_ready()
    assert effects() == {"errback": 1}
    failed = Job.objects.get(state="failed")
    assert by_hand.retry_by_hand(failed.pk, "default")
    Job.objects.filter(pk=failed.pk).update(task=passes.name)
    run_ready()
    # What Celery puts in place of a task that is replaced by a group ends with a stock task.
    assert effects() == {"errback": 1} | ({} if how == "replaced" else {"outer": 1, "inner": 1})


def test_a_failed_part_that_is_run_again_completes_its_chord(node):
    chord([passes.s(1), tasks.fails_first.s("x")], gather.s("body").on_error(effect.si("errback"))).apply_async()
    run_ready()
    failed = Job.objects.get(state="failed")
    assert by_hand.retry_by_hand(failed.pk, "default")
    run_ready()
    assert effects() == {"errback": 1, "body": 1}


def test_a_cancelled_part_fails_its_chord(node):
    chord([passes.s(1), passes.s(2)], gather.s("body").on_error(effect.si("errback"))).apply_async()
    transitions.cancel(Job.objects.order_by("pk")[0].pk, "default")
    run_ready()
    assert effects() == {"errback": 1}


def test_a_chord_belongs_to_the_transaction_of_its_call(node):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        chord([passes.s(1)], gather.s("body")).apply_async()
        raise ZeroDivisionError
    assert (Job.objects.count(), Chord.objects.count()) == (0, 0)


def test_a_chord_that_failed_is_forgotten_with_its_jobs(node):
    chord([fails.s("x")], gather.s("body")).apply_async()
    chord([passes.s(1)], gather.s("body")).apply_async(countdown=1000)
    run_ready()
    chords.prune("default")
    assert Chord.objects.count() == 2
    Chord.objects.update(made_at="2020-01-01T00:00Z")
    chords.prune("default")
    assert [chord.failed for chord in Chord.objects.all()] == [0]


# An id that is called twice


@pytest.mark.parametrize("options", [{}, {"countdown": 1000}])
@pytest.mark.parametrize("is_atomic", [False, True])
def test_a_signature_that_was_frozen_is_called_again(node, options, is_atomic):
    twice = effect.s("a")
    twice.freeze()
    with transaction.atomic() if is_atomic else nullcontext():
        for _ in range(8):
            result = twice.apply_async(**options)
    assert result.id == twice.id
    assert [job.task_id for job in Job.objects.all()] == [result.id] * 8
    Job.objects.filter(state="scheduled").update(run_at="2026-01-01T00:00Z")
    run_ready()
    assert effects() == {"a": 8}


def test_a_unique_signature_that_was_frozen_is_called_again(node):
    twice = tasks.summary.si("mon")
    twice.freeze()
    for _ in range(2):
        twice.apply_async()
        run_ready()
    assert effects() == {"summary:mon": 2}


def test_a_chord_that_was_frozen_is_called_again(node):
    twice = chord([passes.s(1), passes.s(2)], gather.s("body"))
    twice.freeze()
    for _ in range(2):
        twice.apply_async()
        run_ready()
    assert effects() == {"body": 2}
    fails_at_first = chord([fails.s("x")], gather.s("never"))
    fails_at_first.freeze()
    for _ in range(2):
        fails_at_first.apply_async()
        run_ready()


# Another result backend


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_backend_of_the_projects_own_counts_its_chords_and_loses_no_part(node, memory, point):
    result = chord([passes.s(1), passes.s(2)], gather.s("body")).apply_async()
    killed_at(point, str(Job.objects.first().pk))
    run_ready()
    assert result.get(timeout=1) == [1, 2]
    assert effects() == {"body": 1}


@pytest.mark.parametrize("end", [end_expired, end_by_hand, end_running, end_crashed])
def test_a_backend_of_the_projects_own_hears_of_every_end(node, memory, end):
    result = passes.delay(1)
    end(Job.objects.get())
    run_ready()
    assert result.state == ("FAILURE" if end is end_crashed else "REVOKED")


class OwnError(Exception):
    pass


@shared_task
def raises_its_own():
    raise OwnError("no", 7)


def test_a_backend_of_the_projects_own_has_the_exception_itself(node, memory):
    result = chain(raises_its_own.si(), passes.si(1)).apply_async()
    run_ready()
    with pytest.raises(OwnError) as raised:
        result.parent.get(timeout=1)
    assert raised.value.args == ("no", 7)
    assert result.state == "FAILURE"


# Replacements


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (lambda: passes.s("b"), "b"),
        (lambda: chain(passes.s("b"), passes.s()), "b"),
        (lambda: chord([passes.s("b"), passes.s("c")], gather.s("body")), ["b", "c"]),
        (lambda: tasks.replaces.s("again", passes.s("deep")), "deep"),
    ],
)
def test_a_task_replaces_itself(node, others, expected):
    result = chain(tasks.replaces.s("a", others()), gather.s("after")).apply_async()
    first = result.parent.id
    run_ready()
    assert Job.objects.get(pk=first).result == expected
    assert Job.objects.get(pk=result.id).result == expected
    assert effects()["a"] == effects()["after"] == 1
    assert set(states()) == {"succeeded"}


def test_what_was_done_before_the_replacement_is_one_commit_with_it(node):
    result = tasks.replaces.delay("a", passes.s("b"))
    killed_at("before_commit", result.id)
    assert (effects(), Job.objects.count()) == ({}, 1)


def test_a_replacement_that_is_retried_keeps_its_place(node):
    result = tasks.replaces.delay("a", tasks.retries.s("b", 1))
    run_ready()
    Job.objects.filter(state="scheduled").update(run_at="2026-01-01T00:00Z")
    run_ready()
    assert Job.objects.count() == 2
    assert Job.objects.get(pk=result.id).result == 1


# A unique task in the middle of others


IN_THE_MIDDLE = {
    "first of a chain": lambda: chain(tasks.summary.si("mon"), effect.si("after")),
    "next of a chain": lambda: chain(passes.si(1), tasks.summary.si("mon"), effect.si("after")),
    "last of a chain": lambda: chain(passes.si(1), tasks.summary.si("mon")),
    "part of a chord": lambda: chord([tasks.summary.si("mon"), passes.si(1)], effect.si("after")),
    "twice in a group": lambda: group(tasks.summary.si("mon"), tasks.summary.si("mon")) | effect.si("after"),
}


@pytest.mark.parametrize("shape", IN_THE_MIDDLE)
def test_a_unique_task_among_others_ends_as_the_job_that_has_its_key(node, shape):
    holder = tasks.summary.apply_async(("mon",), countdown=1000)
    result = IN_THE_MIDDLE[shape]().apply_async()
    run_ready()
    assert effects() == {}
    assert not result.ready()
    by_hand.run_now(uuid.UUID(holder.id), "default")
    run_ready()
    Job.objects.filter(state="scheduled").update(run_at="2026-01-01T00:00Z")
    run_ready()
    assert result.successful()
    assert effects() == dict.fromkeys(["summary:mon", "after"] if shape != "last of a chain" else ["summary:mon"], 1)


def test_a_unique_task_among_others_fails_as_the_job_that_has_its_key(node):
    holder = tasks.summary.apply_async(("mon",), countdown=1000)
    result = chain(tasks.summary.si("mon"), effect.si("after")).on_error(effect.si("errback")).apply_async()
    transitions.cancel(uuid.UUID(holder.id), "default")
    run_ready()
    assert effects() == {"errback": 1}
    assert result.failed()


# Kills


def a_chain():
    return chain(effect.si("a"), effect.si("b"), effect.si("c")).apply_async()


def a_group_with_a_callback():
    return effect.apply_async(("a",), link=group(effect.si("b"), effect.si("c")))


def a_chord():
    return chord([effect.si("a"), effect.si("b"), effect.si("c")], gather.s("body")).apply_async()


SHAPES = {a_chain: "abc", a_group_with_a_callback: "abc", a_chord: ["a", "b", "c", "body"]}


@pytest.mark.parametrize("point", ["after_claim", "before_commit", "after_completion", "after_commit", "before_notify"])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_each_follow_up_runs_once_whenever_its_process_is_killed(node, shape, before, point):
    shape()
    for _ in range(before):
        run(claim(Job.objects.filter(state="ready").first().pk))
    killed_at(point, str(Job.objects.filter(state="ready").first().pk))
    run_ready()
    assert effects() == dict.fromkeys(SHAPES[shape], 1)
    assert set(states()) == {"succeeded"}


@pytest.mark.slow
def test_a_thousand_parts_and_a_worker_that_is_killed_every_two_seconds():
    parts = [str(number) for number in range(1000)]
    body = chord([tasks.lingers.si(part) for part in parts], gather.s("body")).apply_async()
    workers = [Worker(wait=False), Worker(wait=False)]
    try:
        for _ in range(6):
            # Not for a moment in particular: it strikes wherever they are.
            time.sleep(2)
            workers.append(Worker(wait=False))
            workers.pop(0).kill()
        [job] = wait_ended(body.id, timeout=120)
    finally:
        for worker in workers:
            worker.kill()
    assert job.state == "succeeded"
    assert effects() == dict.fromkeys([*parts, "body"], 1)


@pytest.mark.core
def test_links_chains_groups_and_chords_travel():
    with Worker() as worker:
        chain = tasks.add.apply_async((1, 2), link=tasks.effect.si("linked"))
        (tasks.add.s(1, 2) | tasks.add.s(3) | tasks.effect.si("chained")).apply_async()
        wait_ended(chain.id)
        wait_for(lambda: set(effects()) >= {"linked", "chained"}, 20, f"follow-ups ran: {worker.text()[-500:]}")
    jobs = Job.objects.all()
    assert jobs.count() == 5
    assert set(jobs.values_list("state", flat=True)) == {"succeeded"}
    assert sorted(job.result for job in jobs if job.task.endswith("add")) == [3, 3, 6]


def nothing():
    pass


class RetriesBeforeItStarts(Task):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        if self.request.retries == 0:
            raise self.retry(countdown=0)


def test_a_retry_before_the_body_keeps_what_follows(declare, node):
    job = declare(base=RetriesBeforeItStarts, body=nothing).apply_async(link=tasks.effect.si("linked"))
    run_ready()
    assert Job.objects.get(pk=job.id).retries == 1
    assert Job.objects.filter(task=tasks.effect.name, state="succeeded").count() == 1


@pytest.mark.parametrize("how", ["chain", "link", "chord"])
def test_the_arguments_of_what_follows_are_as_they_were_written(how, node, declare):
    """Also the order of keys, and numbers that ``jsonb`` would write in another way."""
    got = []

    def body(**given):
        got.append(given)

    given = {"order": {"zebra": 1, "a": 2}, "big": 1e16, "zero": -0.0, "day": datetime.date(2026, 1, 2)}
    last, first = declare(body=body).si(**given), declare()
    calls = {
        "chain": lambda: chain(first.si(), last).delay(),
        "link": lambda: first.apply_async(link=last),
        "chord": lambda: chord([first.si(), first.si()], last).delay(),
    }
    calls[how]()
    run_ready()
    assert repr(got) == repr([given])
