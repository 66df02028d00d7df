"""A copy of a database is adopted: what would run is said first, or cancelled."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from jobs.contrib.adoption import activation
from jobs.lifecycle import transitions
from jobs.models import Instance, Job, Node
from jobs.store import databases
from jobs.store.identity import NotAdopted, check_all
from tests.helpers.harness import claim
from tests.tasks import effect, noop

pytestmark = pytest.mark.django_db(transaction=True)


def adopt(*options: str) -> dict[str, Any]:
    out = StringIO()
    call_command("jobs", "adopt", "--json", *options, stdout=out)
    return json.loads(out.getvalue())


def say(*options: str) -> str:
    out = StringIO()
    call_command("jobs", "adopt", *options, stdout=out)
    return out.getvalue()


def test_adopt_says_what_will_run():
    Instance.objects.create(mark="another")
    effect.delay("ready")
    effect.apply_async(["scheduled"], countdown=60)
    would = say("--dry-run")
    assert "was marked as 'another', would be adopted as" in would
    assert "1 scheduled, 1 ready and 0 running jobs" in would
    with pytest.raises(NotAdopted):
        check_all()
    assert "is adopted as" in say()
    check_all()
    assert "is marked as itself already" in say()
    assert not adopt()["default"]["adopted"]


def test_a_database_that_is_marked_as_itself_keeps_its_jobs():
    """Whoever types ``adopt --cancel`` into production's terminal loses nothing."""
    check_all()
    effect.delay("a")
    with pytest.raises(CommandError, match="nothing was cancelled"):
        call_command("jobs", "adopt", "--cancel")
    assert Job.objects.get().state == "ready"


def test_a_copy_is_not_adopted_while_somebody_works_on_it(monkeypatch):
    Instance.objects.create(mark="another")
    effect.delay("a")
    monkeypatch.setattr(activation, "cancel_waiting", lambda using, limit, why: 0)
    with pytest.raises(CommandError, match="was not adopted"):
        call_command("jobs", "adopt", "--cancel")
    assert Instance.objects.get().mark == "another"


def test_cancelling_a_copy_ends_what_its_original_runs():
    node = Node.objects.create(hostname="original", pid=1)
    ended, running = noop.delay().id, effect.delay("running").id
    transitions.cancel(ended, "default")
    claimed = claim(running, node.pk)
    with databases.side() as side, side.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs_message (queue, priority, payload, visible_at, deliveries) VALUES ('q', 0, '{}', 0, 0)"
        )
    waiting = [effect.delay("ready").id, effect.apply_async(["scheduled"], countdown=60).id]
    assert claimed is not None
    Instance.objects.create(mark="another")
    found = adopt("--cancel")["default"]
    assert found["jobs"] == {"scheduled": 1, "ready": 1, "running": 1}
    assert found["messages"] == 1, "of a task that is no job"
    assert (found["cancelled"], found["adopted"]) == (3, True)
    assert activation.survey("default")["jobs"] == {"scheduled": 0, "ready": 0, "running": 0}
    assert activation.survey("default")["messages"] == 0
    for job in Job.objects.filter(pk__in=[running, *waiting]):
        assert (job.state, job.error["type"]) == ("cancelled", "Cancelled")
        assert "jobs adopt --cancel" in job.error["message"]
    assert not transitions.succeed(claimed, None, 0.0), "a run of the copy, if there is one, lost its lease"
    assert claim(waiting[0], node.pk) is None
    assert not Node.objects.filter(dead_at=None).exists()


def test_a_copy_tells_nothing_that_its_original_told_of():
    event = pytest.importorskip("jobs.events.models").Event
    event.objects.create(name="test.adoption.told", source="production", data={})
    Instance.objects.create(mark="production")
    assert "1 events that were not handed on" in say("--cancel", "--dry-run")
    say("--cancel")
    assert not event.objects.exists()
