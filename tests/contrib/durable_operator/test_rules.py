"""What must be true of durable tasks: each rule sees the row that breaks it, and no other."""

from __future__ import annotations

import uuid

import pytest

from jobs.contrib.durable.models import Signal, Step
from jobs.lifecycle.transitions import NEVER
from jobs.models import Batch, Job
from tests.helpers.rows import make
from tests.helpers.verifying import LONG, ago, assert_seen, broken, rules_of, verify, with_a_bound, worker_node

pytestmark = pytest.mark.django_db(transaction=True)


def waits_for(what: str, since: float = LONG, **more) -> Job:
    return make("scheduled", run_at=NEVER, started_at=ago(since), lease=1, waits_for=what, **more)


def claimed(state: str, **more) -> Job:
    return make(state, **{"lease": 2, "token": 1, "node": worker_node(), "started_at": ago(1), **more})


def waits_for_a_signal(since: float = LONG, sent: float = LONG) -> uuid.UUID:
    Signal.objects.create(key="k", made_at=ago(sent))
    return waits_for("signal:k", since).pk


def waits_for_children(state: str = "succeeded", age: float = LONG, since: float = LONG) -> uuid.UUID:
    is_live = state == "ready"
    batch = Batch.objects.create(name="b", ended_at=None if is_live else ago(age), counts={} if is_live else {state: 1})
    (make if is_live else claimed)(state, batch=batch, age=age)
    return waits_for(f"gather:{batch.pk}", since).pk


def wait_of(job: Job, state: str = "waiting", key: str = "k", **more) -> int:
    return Step.objects.create(
        job=job.pk, name="w", kind="wait", state=state, key=key, **{"lease": job.lease, **more}
    ).pk


BREAKERS = [
    ("signal-taken", waits_for_a_signal),
    ("children-awaited", waits_for_children),
    ("children-awaited", lambda: waits_for_children("failed")),
    ("wait-ends-run", lambda: wait_of(claimed("succeeded"))),
]


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_each_rule_sees_what_breaks_it(watching, rule, break_it):
    assert_seen(rule, break_it)


def test_each_rule_is_seen_broken():
    assert rules_of("jobs.contrib.durable") == {rule for rule, _ in BREAKERS}
    assert {rule for rule, _ in with_a_bound(BREAKERS)} == {"signal-taken", "children-awaited"}


def test_a_job_that_was_woken_takes_the_signal_first(watching):
    wait_of(make("ready", lease=1))
    waits_for_a_signal()
    assert broken(verify(patient=False)).keys() <= {"ready-taken"}


@pytest.mark.parametrize(
    "whole",
    [
        lambda: waits_for_a_signal(since=0),
        lambda: waits_for_a_signal(sent=0),
        lambda: waits_for("signal:other"),
        lambda: waits_for_children(age=0),
        lambda: waits_for_children("ready", age=0),
        lambda: make("ready", task="jobs.wake", args=[str(waits_for_children())]),
        lambda: wait_of(claimed("succeeded"), lease=1),
        lambda: wait_of(claimed("succeeded"), state="done"),
        lambda: wait_of(claimed("cancelled")),
    ],
)
def test_what_is_right_breaks_nothing(watching, whole):
    whole()
    assert broken(verify(patient=False)) == {}
