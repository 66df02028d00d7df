"""A call in a transaction of another database is no part of it, and the log says so."""

from __future__ import annotations

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobs.contrib.cross_database import doors
from jobs.models import Job
from tests import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def other(monkeypatch, tmp_path):
    """Another database of the project, in which no jobs are."""
    more = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {}, "NAME": f"{tmp_path}/other"}
    monkeypatch.setitem(connections.settings, "other", {**connections.settings["default"], **more})
    # Django's own forbids a test the databases that it did not name.
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", lambda each: each.connection or each.connect())
    monkeypatch.setattr(doors, "_said", set())
    yield "other"
    connections["other"].close()
    del connections["other"]


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "call_elsewhere"]


def test_it_is_said_once_of_each_task(other, caplog):
    for task in (tasks.noop, tasks.noop, tasks.effect):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=other):
            task.delay("a")
            raise ZeroDivisionError
    assert Job.objects.count() == 3
    noop, effect = said(caplog)
    assert tasks.noop.name in noop
    assert tasks.effect.name in effect
    assert "using='other'" in noop


def test_nothing_is_said_of_a_call_in_its_own_transaction(other, caplog):
    tasks.noop.delay("a")
    with transaction.atomic(using=other), transaction.atomic():
        tasks.noop.delay("a")
    with transaction.atomic():
        tasks.noop.delay("a")
    assert said(caplog) == []
