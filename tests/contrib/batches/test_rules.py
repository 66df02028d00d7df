"""What must be true of batches: each rule sees the row that breaks it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs.contrib.batches.models import Batch
from jobs.contrib.verify.verify import verify
from tests.helpers.rows import make
from tests.helpers.verifying import (
    LONG,
    ago,
    assert_seen,
    assert_waits,
    broken,
    recovering,
    rules_of,
    with_a_bound,
    worker_node,
)

pytestmark = pytest.mark.django_db(transaction=True)


def _ended_batch(*states: str, **counts: int) -> object:
    batch = Batch.objects.create(name="import 7", ended_at=timezone.now(), counts=counts)
    for state in states:
        make(state, batch=batch, **({"node": worker_node()} if state == "running" else {}))
    return batch.pk


def _open_batch(*ages: float) -> object:
    batch = Batch.objects.create(name="import 7", made_at=ago(LONG))
    for age in ages:
        make("failed", age=age, batch=batch)
    return batch.pk


BREAKERS = [
    ("batch-ended", lambda: _open_batch(LONG, LONG)),
    ("batch-ended", _open_batch),
    ("batch-counts", lambda: _ended_batch("failed", "running", failed=2)),
    ("batch-counts", lambda: _ended_batch("failed", "failed", failed=1, cancelled=1)),
]


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_each_rule_sees_what_breaks_it(watching, rule, break_it):
    assert_seen(rule, break_it)


def test_each_rule_is_seen_broken():
    assert rules_of("jobs.contrib.batches") == {rule for rule, _ in BREAKERS}


@pytest.mark.parametrize(("rule", "break_it"), with_a_bound(BREAKERS))
def test_nothing_is_broken_as_long_as_nobody_could_put_it_right(rule, break_it):
    assert_waits(rule, break_it)


def test_batches_of_which_all_is_well(watching):
    # Its last job ended a moment ago; some of another's jobs are pruned.
    _open_batch(LONG, 1.0)
    _ended_batch("failed", failed=7, succeeded=2)
    report = verify()
    assert (broken(report), recovering(report)) == ({}, {"batch-ended": 1})
