"""What must be true of limits: each rule sees the row that breaks it."""

from __future__ import annotations

import pytest
from django.db import connection
from django.utils import timezone

from jobs.contrib.limits.models import RateLimiter
from jobs.inspection.verify import verify
from jobs.models import Job, Node
from tests.helpers.rows import make
from tests.helpers.verifying import (
    assert_seen,
    broken,
    found,
    recovering,
    rules_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


def _held(key: str | None = "k", **limiter) -> object:
    if limiter:
        RateLimiter.objects.create(key=key, **limiter)
    return make("ready", held=True, limit_key=key).pk


BREAKERS = [
    ("held-let-in", _held),
    ("held-let-in", lambda: _held(look_at=None)),
    ("held-let-in", lambda: _held(None)),
]


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_each_rule_sees_what_breaks_it(watching, rule, break_it):
    assert_seen(rule, break_it)


def test_each_rule_is_seen_broken():
    assert rules_of("jobs.contrib.limits") == {rule for rule, _ in BREAKERS} | {"one-job-per-slot"}


def test_a_held_job_of_which_its_limit_knows_is_well(watching):
    _held(look_at=1.0)
    report = verify()
    assert (broken(report), recovering(report)) == ({}, {})


def test_a_place_that_two_jobs_have_is_named(monkeypatch):
    what = next(each for each in Job._meta.constraints if each.name == "jobs_job_limit_slot")
    with monkeypatch.context() as patch, connection.schema_editor() as editor:
        # SQLite makes the table again, from the model.
        patch.setattr(Job._meta, "constraints", [each for each in Job._meta.constraints if each is not what])
        editor.remove_constraint(Job, what)
    try:
        node = Node.objects.create(hostname="h", pid=1)
        for _ in range(2):
            values = {"node": node, "token": 1, "lease": 1, "started_at": timezone.now()}
            Job.objects.create(task="t", queue="q", state="running", limit_key="t:1", limit_slot=0, **values)
        assert found(verify(patient=False))["one-job-per-slot"].examples == ["t:1"]
    finally:
        Job.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, what)
