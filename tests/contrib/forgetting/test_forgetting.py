"""A person asks to be forgotten."""

import datetime
import json

import pytest
from celery import chord
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from jobs.contrib.canvas.models import Chord
from jobs.contrib.effects.models import Effect
from jobs.contrib.forgetting import forget as forgetting
from jobs.contrib.forgetting.forget import forget
from jobs.contrib.results.store import Store
from jobs.events.models import Event
from jobs.models import Action, Job, Marker, StoredResult
from jobs.testing import run_jobs
from tests import tasks
from tests.contrib.forgetting import tasks as own
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def traces():
    """Each row of ours that has the address, or the number, of the person."""
    found = []
    for table in connection.introspection.table_names():
        if table.startswith("jobs_") and table not in ("jobs_event_subscription", "jobs_subscription"):
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {table}")
                found += [f"{table}: {row}" for row in cursor.fetchall() if "ada@" in str(row) or "joins:5" in str(row)]
    return found


@pytest.fixture
def ada():
    own.joins.delay(5, "ada@example.com")
    own.pays.delay(5)
    own.joins.delay(6, "bob@example.com")
    run_jobs()
    job = Job.objects.filter(tags__have={"user": 5}).first()
    Action.objects.create(job=job.pk, what="retry", by="x", why="ada@example.com")
    Store().write(str(job.pk), '{"of": "ada@example.com"}', None)
    assert len(traces()) > 5


def test_nothing_of_the_person_is_left_and_all_of_the_others(ada):
    before = Job.objects.count()
    would = forget({"user": 5}, dry_run=True)
    assert (would.jobs, would.markers, would.effects, would.events) == (5, 1, 1, 1)
    assert Job.objects.count() == before
    assert forget({"user": 5}, by="op", reason="asked") == would
    assert traces() == []
    assert not Effect.objects.exists()
    assert not StoredResult.objects.filter(meta__contains="ada@").exists()
    assert not Action.objects.exists()
    assert Job.objects.count() == before - 5
    assert Marker.objects.get().key == "joins:6"
    assert Event.objects.get().data["mail"] == "bob@example.com"
    assert forget({"user": 5}).jobs == 0


def test_what_waits_is_cancelled_first():
    own.joins.apply_async((5, "ada@example.com"), countdown=3600)
    assert forget({"user": 5}, dry_run=True).left == {}
    assert Job.objects.get().state == "scheduled"
    assert forget({"user": 5}).jobs == 1
    assert not Job.objects.exists()


def test_as_long_as_something_is_open_nothing_is_deleted(ada):
    Effect.objects.all().delete()
    own.pays.delay(5, "nobody knows")
    run_jobs(raises=False)
    before = Job.objects.count()
    [why] = forget({"user": 5}).left.values()
    assert "manage.py jobs effects" in why
    assert Job.objects.count() == before
    assert Marker.objects.count() == 2


def test_what_runs_is_asked_to_end():
    job = make("running", tags={"user": 5})
    assert forget({"user": 5}).left == {str(job.pk): "has not ended: it was asked to, try again when it has"}
    assert Job.objects.get().state == "running"


def test_a_job_that_is_let_run_again_meanwhile_keeps_its_marker_and_its_calls(ada, monkeypatch):
    """Else its external call would be made twice."""
    markers, calls = Marker.objects.count(), Effect.objects.count()
    looked = forgetting._in_the_way

    def retried(keys, *args):
        found = looked(keys, *args)
        Job.objects.filter(pk__in=keys).update(state="ready", finished_at=None)
        return found

    monkeypatch.setattr(forgetting, "_in_the_way", retried)
    assert forget({"user": 5}).left
    assert (Marker.objects.count(), Effect.objects.count()) == (markers, calls)


def test_the_result_of_a_part_of_a_chord_goes_with_its_job():
    """A chord keeps what its parts returned until its body is called, or somebody runs again what failed."""
    later = own.fails.si().set(countdown=3600)
    chord([own.looks_up.si(5, "ada@example.com"), later], tasks.effect.si("body")).apply_async()
    run_jobs()
    assert "chord that has not ended" in " ".join(forget({"user": 5}).left.values())
    run_jobs(until=timezone.now() + datetime.timedelta(hours=2), raises=False)
    assert any("jobs_chord_part" in each for each in traces())
    forget({"user": 5})
    assert traces() == []
    assert not Chord.objects.exists()


def test_what_was_called_in_another_database_is_found(second):
    parent = make("succeeded", tags={"user": 5})
    ended = {"task": "tests.tasks.noop", "state": "succeeded", "finished_at": timezone.now()}
    child = Job.objects.using(second).create(**ended, parent_id=parent.pk)
    Job.objects.create(**ended, parent_id=child.pk)
    Job.objects.create(**ended, parent_id=parent.pk)
    assert forget({"user": 5}, dry_run=True).jobs == 4


def test_the_command(ada, capsys):
    call_command("jobs", "forget", "--tag", "user=5", "--dry-run")
    assert "would be deleted: jobs 5, markers 1, effects 1, events 1" in capsys.readouterr().out
    call_command("jobs", "forget", "--tag", "user=5", "--json")
    assert json.loads(capsys.readouterr().out)["deleted"] is True
    assert traces() == []
    with pytest.raises(CommandError, match="--tag: 'user' is no tag"):
        call_command("jobs", "forget", "--tag", "user")


def test_an_event_that_other_services_have_not_got_yet_is_in_the_way(settings):
    """It may be the one that tells them to forget."""
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": "amqp://guest:guest@127.0.0.1:1//"}
    own.joins.delay(5, "ada@example.com")
    run_jobs(raises=False)
    event = Event.objects.get()
    assert (event.relayed_at is not None, event.sent_at) == (True, None)
    assert list(forget({"user": 5}).left) == [str(event.uuid)]
    Event.objects.update(sent_at=timezone.now())
    assert forget({"user": 5}).events == 1
