"""Pause and resume: nothing of a paused queue starts, whoever tries, and nothing is lost."""

from __future__ import annotations

import io
import json

import pytest
from celery import current_app
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.urls import reverse

from jobs.contrib.pauses import pauses
from jobs.lifecycle import transitions
from jobs.models import Job, Pause
from tests import tasks
from tests.helpers.harness import Worker, claim, deliver, effects, wait_ended
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db(transaction=True)

SWITCH = reverse("admin:jobs_queue_switch")


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("jobs", *args, stdout=out)
    return out.getvalue()


@pytest.mark.core
def test_paused_and_resumed_under_a_worker():
    # The cells of the matrix have queues of their own.
    queue = current_app.conf.task_default_queue
    with Worker():
        before = tasks.effect.delay("before")
        wait_ended(before.id)
        run("pause", queue, "--reason", "for a test")
        ready, due, late = (
            tasks.effect.delay("a"),
            tasks.effect.apply_async(("b",), countdown=0.1),
            tasks.effect.apply_async(("c",), expires=0.2),
        )
        # Long enough for a worker to have run both, if it did.
        [expired] = wait_ended(late.id)
        assert (expired.state, expired.error["type"]) == ("cancelled", "Expired")
        other = tasks.effect.apply_async(("d",), queue="mail")
        assert Job.objects.filter(pk__in=[ready.id, due.id], lease=0, started_at=None).count() == 2
        run("resume", queue)
        wait_ended(ready.id, due.id)
    assert effects() == {"before": 1, "a": 1, "b": 1}
    assert Job.objects.get(pk=other.id).state == "ready"


@pytest.mark.slow
@pytest.mark.core
def test_moved_to_a_queue_that_has_a_worker():
    queue = current_app.conf.task_default_queue
    stays, goes, later = (
        tasks.effect.apply_async(("a",), queue="nowhere"),
        tasks.effect.apply_async(("b",), queue="nowhere"),
        tasks.effect.apply_async(("c",), queue="nowhere", countdown=0.5),
    )
    with Worker():
        away = tasks.effect.apply_async(("d",), countdown=60)
        run("move", goes.id, later.id, "--to", queue)
        run("move", away.id, "--to", "nowhere")
        run("run", away.id)
        wait_ended(goes.id, later.id)
    assert effects() == {"b": 1, "c": 1}
    assert [Job.objects.get(pk=one.id).state for one in (stays, away)] == ["ready", "ready"]


def test_what_runs_goes_on_and_waits_to_run_again(node):
    result = tasks.retries.delay("a", times=1)
    job = claim(result.id)
    pauses.pause(job.queue)
    assert transitions.retry(job, None, {"type": "x", "message": "", "attempt": 1}, {})
    assert deliver(result)[0] == "UNCLAIMED"
    job.refresh_from_db()
    assert (job.state, job.lease) == ("ready", 1)


def test_commands():
    assert run("pause") == "No queue is paused.\n"
    make("ready")
    assert run("pause", "celery", "mail", "--reason", "why not") == (
        "celery: paused, 1 jobs are ready\nmail: paused, 0 jobs are ready\n"
    )
    assert run("pause", "mail") == "mail: was paused already\n"
    assert "mail: paused at" in run("pause")
    assert "why not" in run("pause")
    found = json.loads(run("pause", "--json"))
    assert found["changed"] == []
    assert list(found["paused"]) == ["celery", "mail"]
    found = json.loads(run("resume", "mail", "other", "--json"))
    assert (found["changed"], list(found["paused"])) == (["mail"], ["celery"])
    assert run("resume", "celery", "celery") == "celery: resumed, 1 jobs are ready\n"
    assert not Pause.objects.exists()
    for name in ("x" * 256, "", "a\0b"):
        with pytest.raises(CommandError, match="1 to 255 characters, none of them NUL"):
            run("pause", name)
    run("pause", "mail", "--reason", "a\0b")
    assert "\0" not in Pause.objects.get().reason


def test_in_the_admin(staff):
    client = staff("view_job", "pause_queue")

    def said(**fields: str) -> str:
        return client.post(SWITCH, {"queue": "mail", **fields}, follow=True).content.decode()

    assert "Paused: mail" in said(verb="pause", why="moving")
    assert (Pause.objects.get().by, Pause.objects.get().reason) == ("ada", "moving")
    assert "Paused already" in said(verb="pause")
    assert "Resumed: mail" in said(verb="resume")
    assert not Pause.objects.exists()
    assert [entry.object_repr for entry in LogEntry.objects.all()] == ["mail", "mail"]


@pytest.mark.parametrize("codenames", [["view_job", "change_job", "retry_job"], ["pause_queue"]])
def test_who_may_not_cannot(staff, codenames):
    client = staff(*codenames)
    assert client.post(SWITCH, {"queue": "mail", "verb": "pause"}).status_code == 403
    assert client.get(SWITCH).status_code == 405
    assert not Pause.objects.exists()
    assert not LogEntry.objects.exists()
