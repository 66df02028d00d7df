"""What must be true of external calls: each rule sees the row that breaks it."""

from __future__ import annotations

import pytest

from jobs.contrib.effects.models import Effect
from tests.helpers.rows import make
from tests.helpers.verifying import (
    assert_seen,
    rules_of,
    worker_node,
)

pytestmark = pytest.mark.django_db(transaction=True)


def _call(state: str, under: int = 3, **more) -> object:
    """An external call that was begun under a lease that its job never had."""
    return Effect.objects.create(name="charge", key="1", job=make(state, **more).pk, lease=under).pk


BREAKERS = [
    ("effects-settled", lambda: _call("running", lease=2, node=worker_node())),
    ("effects-settled", lambda: _call("running", lease=1, node=worker_node(), under=0)),
]


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_each_rule_sees_what_breaks_it(watching, rule, break_it):
    assert_seen(rule, break_it)


def test_each_rule_is_seen_broken():
    assert rules_of("jobs.contrib.effects") == {rule for rule, _ in BREAKERS}
