"""What must be true of jobs of unknown tasks: the rule sees the row that breaks it."""

from __future__ import annotations

import pytest

from jobs.contrib.unknown_tasks.parking import TASK
from jobs.lifecycle.transitions import PARKED
from jobs.models import Node
from tests.helpers.rows import ERROR, make
from tests.helpers.verifying import assert_seen, assert_waits, rules_of

pytestmark = pytest.mark.django_db(transaction=True)


def parked() -> object:
    """Put aside long ago, since nobody knew the task."""
    Node.objects.update(tasks=["tests.tasks.noop"])
    error = {**ERROR, "type": "NotRegistered"}
    return make("scheduled", run_at=PARKED, waits_for=f"{TASK}tests.tasks.noop", error=error).pk


def test_the_rule_sees_what_breaks_it(watching):
    assert_seen("known-let-go", parked)


def test_nothing_is_broken_as_long_as_nobody_could_put_it_right():
    assert_waits("known-let-go", parked)


def test_each_rule_is_seen_broken():
    assert rules_of("jobs.contrib.unknown_tasks") == {"known-let-go"}
