"""``manage.py jobs replay --dry-run``, and the button on a job's page."""

import html
import json
import os
import uuid

import pytest
from celery import chain, current_app
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.core.cache import cache
from django.core.management import CommandError, call_command

from jobs.contrib.rehearsal.rehearse import Refused, rehearse
from jobs.events.models import Event
from jobs.models import Job, Node
from jobs.testing import run_jobs
from tests import tasks
from tests.contrib.rehearsal import tasks as own
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def rows():
    for key in ("many", "many", "one", "gone"):
        Effect.objects.create(key=key, pid=os.getpid())


def look(task, *args, **options):
    result = task.apply_async(args, **options)
    before = list(Job.objects.order_by("pk").values())
    effects = list(Effect.objects.order_by("pk").values())
    found = rehearse(uuid.UUID(result.id), current_app)
    json.dumps(found, default=str)
    assert list(Job.objects.order_by("pk").values()) == before, "nothing is changed"
    assert list(Effect.objects.order_by("pk").values()) == effects
    assert not Node.objects.exists()
    assert not Event.objects.exists()
    return found


def test_it_shows_what_a_run_would_do_and_leaves_nothing():
    cache.delete("rehearsal")
    found = look(own.works, "a")
    assert (found["outcome"], found["result"]) == ("succeeds", "'a'")
    [table] = [each for each in found["tables"] if each["model"] == "tests.Effect"]
    assert (table["inserted"], table["changed"], table["deleted"]) == (1, 3, 1)
    assert [(row["what"], row["fields"].get("note")) for row in found["rows"]] == [
        ("inserted", None) if "note" not in found["rows"][0]["fields"] else ("inserted", [None, ""]),
        ("changed", ["", "new"]),
        ("deleted", None),
    ]
    assert [(call["task"], call["args"]) for call in found["jobs"]] == [("tests.tasks.effect", ["a-called"])]
    assert [(each["name"], each["data"]) for each in found["events"]] == [("tests.rehearsed", {"key": "a"})]
    assert found["on_commit"] == ["hook"]
    assert [(each["kind"], each["stopped"]) for each in found["tried"]] == [("mail", False), ("cache", False)]
    assert mail.outbox == []
    assert cache.get("rehearsal") is None


def test_a_request_is_stopped_and_the_body_ends_there():
    found = look(own.asks, "a")
    assert found["outcome"] == "fails"
    assert found["tried"] == [{"kind": "http", "what": "a request to 127.0.0.1", "stopped": True}]
    assert found["error"]["type"] in ("NotIsolated", "URLError")


@pytest.mark.parametrize(
    ("task", "outcome", "error"),
    [
        (own.breaks, "fails", "OperationalError ProgrammingError"),
        (own.commits, "fails", "NotIsolated"),
        (own.again, "retries", "Retry"),
        (own.sleeps, "snoozes", "Snooze"),
        (own.ends, "cancels", "Cancel"),
    ],
)
def test_what_the_body_raises_is_said(task, outcome, error):
    found = look(task, "a")
    assert found["outcome"] == outcome
    assert found["error"]["type"] in error.split()


def test_what_follows_it_is_shown():
    chain(tasks.effect.si("a"), tasks.effect.si("b")).delay()
    found = rehearse(Job.objects.get().pk, current_app)
    assert [call["args"] for call in found["jobs"]] == [["b"]]


def test_a_job_that_ended_is_looked_at_too():
    result = tasks.effect.delay("a")
    run_jobs()
    found = rehearse(uuid.UUID(result.id), current_app)
    assert found["outcome"] == "succeeds"
    assert Job.objects.get().state == "succeeded"


@pytest.mark.parametrize(
    ("options", "text"),
    [({"atomic": False}, "atomic=False"), ({"durable": True}, "durable task commits after each step")],
)
def test_what_cannot_be_rolled_back_is_refused(declare, options, text):
    result = declare(**options).delay()
    with pytest.raises(Refused, match=text):
        rehearse(uuid.UUID(result.id), current_app)


def test_so_are_an_async_body_a_running_job_and_one_that_is_not_there(declare):
    async def body(): ...

    result = declare(body=body).delay()
    with pytest.raises(Refused, match="async body has no transaction"):
        rehearse(uuid.UUID(result.id), current_app)
    node = Node.objects.create(hostname="h", pid=1)
    running = Job.objects.create(
        task="tests.tasks.effect", queue="celery", state="running", node=node, token=1, started_at="2026-01-01T00:00Z"
    )
    with pytest.raises(Refused, match="runs at the moment"):
        rehearse(running.pk, current_app)
    with pytest.raises(Refused, match="There is no job"):
        rehearse(uuid.uuid4(), current_app)


def test_arguments_that_are_hidden_stay_hidden(settings):
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redactions.hide_all"}
    found = look(own.works, "secret-key")
    assert "secret-key" not in json.dumps(found, default=str)


def test_the_help_names_it_among_the_trials(capsys):
    with pytest.raises(SystemExit):
        call_command("jobs", "--help")
    text = capsys.readouterr().out
    assert "\n  replay " in text[text.index("Try and prove:") : text.index("Set up and keep:")]


def test_the_command(capsys):
    result = own.works.delay("a")
    call_command("jobs", "replay", result.id, "--dry-run")
    text = capsys.readouterr().out
    for line in ("succeeds; all of it was rolled back", "tests.Effect: 1 inserted, 3 changed, 1 deleted",
                 'note: "" -> "new"', 'calls tests.tasks.effect("a-called")', "tells of tests.rehearsed",
                 "tried the mail 'Hello'", "after the commit: hook"):  # fmt: skip
        assert line in text
    call_command("jobs", "replay", result.id, "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["outcome"] == "succeeds"
    with pytest.raises(CommandError, match="manage.py jobs retry"):
        call_command("jobs", "replay", result.id)
    failing = own.asks.delay("a")
    with pytest.raises(CommandError, match="The body would fail"):
        call_command("jobs", "replay", failing.id, "--dry-run")


def test_rows_show_their_fields_to_those_who_may_see_the_model(client):
    result = own.works.delay("a")
    url = f"/admin/jobs/job/{result.id}/rehearse/"
    looker = User.objects.create_user("looker", is_staff=True)
    looker.user_permissions.add(*Permission.objects.filter(codename__in=["view_job", "retry_job"]))
    client.force_login(looker)
    text = html.unescape(client.post(url).content.decode())
    assert "changed tests.Effect" in text
    assert '"new"' not in text
    assert "Fields of models that you may not see are left out." in text
    looker.user_permissions.add(Permission.objects.get(codename="view_effect", content_type__app_label="tests"))
    text = html.unescape(client.post(url).content.decode())
    assert 'note: "" -> "new"' in text
    assert "left out" not in text


def test_the_button(admin_client, client):
    result = own.works.delay("a")
    url = f"/admin/jobs/job/{result.id}/rehearse/"
    assert url in admin_client.get(f"/admin/jobs/job/{result.id}/change/").content.decode()
    assert admin_client.get(url).status_code == 405
    text = admin_client.post(url).content.decode()
    assert "It would succeed." in text
    assert "1 inserted, 3 changed, 1 deleted" in text
    assert LogEntry.objects.get().change_message == "Looked what it would do"
    assert not Effect.objects.filter(key="a").exists()
    looker = User.objects.create_user("looker", is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(looker)
    assert url not in client.get(f"/admin/jobs/job/{result.id}/change/").content.decode()
    assert client.post(url).status_code == 403
