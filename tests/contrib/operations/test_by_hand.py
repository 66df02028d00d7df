"""What people do to jobs that wait or have ended: one transition each, beside others that take the same job."""

from __future__ import annotations

import uuid

import pytest
from celery import current_app
from django.db import connection, transaction
from django.utils import timezone

from jobs import UniqueBusy, UniqueTaken
from jobs.contrib.operations import by_hand
from jobs.contrib.pruning import prune
from jobs.lifecycle import transitions, wakeups
from jobs.models import Action, Job
from tests import tasks
from tests.helpers.concurrency import open_transaction
from tests.helpers.harness import deliver
from tests.helpers.rows import ERROR, make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("verb", ["run_now", "redirect", "retry_by_hand"])
def test_what_a_person_lets_go_on_is_told_after_the_commit(monkeypatch, verb):
    key = uuid.UUID(tasks.effect.apply_async(("a",), countdown=60 if verb == "run_now" else None).id)
    if verb == "retry_by_hand":
        assert transitions.cancel(key, "default")
    told: list[str] = []
    monkeypatch.setattr(wakeups, "notify", lambda using, queues: told.extend(queues))
    with transaction.atomic():
        if verb == "redirect":
            assert by_hand.redirect(key, "default", {"queue": "mail"})
        else:
            assert getattr(by_hand, verb)(key, "default")
        assert told == []
    assert told == ["mail" if verb == "redirect" else current_app.conf.task_default_queue]


@pytest.mark.database
def test_what_was_done_to_a_job_is_pruned_with_it():
    job, kept = make("succeeded"), make("succeeded")
    Action.objects.bulk_create(Action(job=each.pk, what="retry") for each in (job, kept))
    assert prune.delete([job.pk], "default") == 1
    assert Action.objects.get().job == kept.pk


@pytest.mark.database
def test_replay_while_somebody_may_take_the_key(node, settings):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    settings.JOBS = {**settings.JOBS, "UNIQUE_WAIT": 0.3}
    one = tasks.summary.delay("mon", how="fails")
    deliver(one)
    with open_transaction(lambda: tasks.summary.delay("mon")), pytest.raises(UniqueBusy, match="in a moment"):
        by_hand.retry_by_hand(uuid.UUID(one.id), "default")


@pytest.mark.database
def test_replay_of_a_job_whose_key_is_taken(node):
    one = tasks.summary.delay("mon", how="fails")
    deliver(one)
    holder = tasks.summary.delay("mon")
    with pytest.raises(UniqueTaken, match=holder.id):
        by_hand.retry_by_hand(uuid.UUID(one.id), "default")
    deliver(holder)
    assert by_hand.retry_by_hand(uuid.UUID(one.id), "default")


def test_unique_for_is_over_for_a_replay_too(node):
    one = tasks.summary_for_a_while.delay("mon")
    Job.objects.update(state="cancelled", finished_at=timezone.now(), error=ERROR)
    tasks.summary_for_a_while.delay("mon")
    Job.objects.filter(pk=one.id).update(unique_expires_at=transitions.now_plus(-1))
    assert by_hand.retry_by_hand(uuid.UUID(one.id), "default")
    assert Job.objects.filter(state="ready").count() == 2


def test_a_replay_resets_the_counts_but_never_the_lease(node):
    result = tasks.raises.delay("wrong")
    deliver(result)
    assert by_hand.retry_by_hand(uuid.UUID(result.id), "default")
    job = Job.objects.get()
    assert (job.state, job.retries, job.lease, job.finished_at) == ("ready", 0, 1, None)
    deliver(result)
    assert Job.objects.get().lease == 2


def test_a_replayed_job_no_longer_expires(node):
    result = tasks.effect.apply_async(("a",), expires=1)
    Job.objects.update(expires_at=timezone.now() - timezone.timedelta(seconds=1))
    transitions.expire("default", 10)
    assert by_hand.retry_by_hand(uuid.UUID(result.id), "default")
    assert deliver(result)[0] == "SUCCESS"
