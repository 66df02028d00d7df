"""The ledger forgets answered calls that are old, and whose job is gone."""

import datetime
import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.contrib.effects import old
from jobs.models import Effect
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOW = timezone.now()
OLD, NEW = NOW - datetime.timedelta(days=400), NOW - datetime.timedelta(days=300)


@pytest.fixture(autouse=True)
def begin():
    old._walks.clear()


def call(key, state="sent", created_at=OLD, sent_at=OLD, job=None):
    Effect.objects.create(
        name="pay", key=key, state=state, job=job or uuid.uuid4(), lease=1, created_at=created_at,
        sent_at=sent_at if state == "sent" else None,
    )  # fmt: skip


def left():
    return set(Effect.objects.values_list("key", flat=True))


def test_what_is_answered_and_old_goes_and_all_else_stays(settings):
    call("old")
    call("open", "sending")
    call("parked", "parked")
    call("answered-late", sent_at=NEW)
    call("of-a-job", job=make("failed").pk)
    call("new", created_at=NEW, sent_at=NEW)
    assert old.prune("default", 10) == 1
    assert left() == {"open", "parked", "answered-late", "of-a-job", "new"}
    settings.JOBS = {**settings.JOBS, "RETENTION_EFFECTS": None}
    old._walks.clear()
    call("old")
    assert old.prune("default", 10) == 0


def test_what_stays_is_passed_over_and_not_read_again(settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 5}
    for number in range(12):
        call(f"open-{number}", "sending")
    call("old")
    assert old.prune("default", 10) == 1
    assert len(left()) == 12
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert old.prune("default", 10) == 0
    assert len([query for query in asked if "jobs_effect" in query["sql"]]) == 1
