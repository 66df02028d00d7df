"""A person lets a job with a unique key wait again, which another job may have by now."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from jobs.lifecycle import transitions
from jobs.models import Job
from jobs.models.values import as_uuid
from tests import tasks
from tests.helpers.concurrency import open_transaction
from tests.helpers.harness import deliver
from tests.helpers.rows import ERROR

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.database
def test_replay_while_somebody_may_take_the_key(node, settings):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    settings.JOBS = {**settings.JOBS, "UNIQUE_WAIT": 0.3}
    one, two = tasks.summary.delay("mon", how="fails"), tasks.effect.delay("a")
    deliver(one)
    transitions.cancel(as_uuid(two.id), "default")
    with open_transaction(lambda: tasks.summary.delay("mon")), pytest.raises(CommandError, match="1 of 2"):
        call_command("jobs", "retry", one.id, two.id)
    assert Job.objects.get(pk=two.id).state == "ready", "the others are retried"


@pytest.mark.database
def test_replay_of_a_job_whose_key_is_taken(node, capsys):
    one = tasks.summary.delay("mon", how="fails")
    deliver(one)
    holder = tasks.summary.delay("mon")
    with pytest.raises(CommandError, match="could not be retried"):
        call_command("jobs", "retry", one.id)
    assert holder.id in capsys.readouterr().out


def test_unique_for_is_over_for_a_replay_too(node, capsys):
    one = tasks.summary_for_a_while.delay("mon")
    Job.objects.update(state="cancelled", finished_at=timezone.now(), error=ERROR)
    tasks.summary_for_a_while.delay("mon")
    Job.objects.filter(pk=one.id).update(unique_expires_at=transitions.now_plus(-1))
    call_command("jobs", "retry", one.id, "--dry-run")
    assert "would be retried (is cancelled)" in capsys.readouterr().out
