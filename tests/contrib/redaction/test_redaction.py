"""What people may not see of arguments and results, they see nowhere."""

from __future__ import annotations

import datetime
import io
import json
from importlib.util import find_spec

import pytest
from celery import current_app
from celery.exceptions import Retry
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.urls import reverse

from jobs.conf import problems
from jobs.contrib.celery_events import pipe
from jobs.contrib.checks import system as checks
from jobs.contrib.redaction.display import shown
from jobs.lifecycle.run import Run
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Marker
from jobs.models.values import DEPTH, jsonable, scrub
from jobs.worker.runner import Runner
from tests import tasks
from tests.helpers.admin_list import listed
from tests.helpers.redactions import ENTRY, SECRET, failed, of_job, redact, text_of
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db


def everywhere(job, client) -> str:
    out = io.StringIO()
    call_command("jobs", "show", str(job.pk), stdout=out)
    call_command("jobs", "show", str(job.pk), "--json", stdout=out)
    call_command("jobs", "list", "--json", stdout=out)
    if find_spec("jobs.contrib.why"):
        call_command("jobs", "why", str(job.pk), "--json", stdout=out)
    pages = [reverse("admin:jobs_job_change", args=[job.pk]), reverse("admin:jobs_job_changelist")]
    return out.getvalue() + "".join(client.get(url).content.decode() for url in pages)


@pytest.mark.parametrize("call", [{"args": ["key", "s3cret"]}, {"args": ["key"], "kwargs": {"note": "s3cret"}}])
def test_by_name_however_it_was_passed(settings, admin_client, call):
    redact(settings)
    job = make("succeeded", result="s3cret", **call)
    text = everywhere(job, admin_client)
    assert "s3cret" not in text
    assert "***" in text
    assert "key" in text
    job.refresh_from_db()
    assert job.result == "s3cret", "what is stored stays"


def test_what_it_fails_at_is_hidden(settings, admin_client, caplog):
    redact(settings)
    text = everywhere(make("succeeded", args=["key", "bad"]), admin_client)
    assert "hidden: JOBS" in text
    assert "JOBS['REDACT'] failed" in caplog.text


def test_arguments_that_fit_no_more_and_tasks_that_nobody_knows(settings, admin_client):
    redact(settings)
    text = everywhere(make("succeeded", args=["one", "s3cret", "three"]), admin_client)
    assert "s3cret" not in text, "its place still has a name"
    assert "three" in text
    assert "one" in everywhere(make("succeeded", task="gone", args=["one"]), admin_client)


def test_without_it_everything_is_shown(admin_client):
    assert "s3cret" in everywhere(make("succeeded", args=["key", "s3cret"]), admin_client)


def test_a_path_that_leads_nowhere(settings, admin_client):
    redact(settings, "tests.nowhere")
    assert [each.id for each in checks.check_settings()] == ["jobs.E013"]
    assert "s3cret" not in everywhere(make("succeeded", args=["key", "s3cret"]), admin_client)
    redact(settings)
    assert not checks.check_settings()
    settings.JOBS = {**settings.JOBS, "REDACT": 7}
    assert any("JOBS['REDACT'] must be the dotted path" in text for text in problems())


def test_neither_headers_nor_options_tell(settings, admin_client):
    redact(settings)
    link = tasks.effect.si("x", note="s3cret-of-the-link")
    headers = {"kwargsrepr": "{'note': 's3cret'}", "from": "the shop"}
    job = make(args=["x"], kwargs={"note": "s3cret"}, options={"link": [dict(link)], "headers": headers})
    text = admin_client.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()
    assert "the shop" in text
    assert "kwargsrepr" in text
    assert "s3cret" not in text


# Where else the value of an argument may stand


def test_options_tell_no_value_and_no_key_that_is_hidden(settings, admin_client):
    headers = {"x-customer": f"for {SECRET}", "from": "the shop", "event": {"name": "shop.paid", "order_key": SECRET}}
    job = make(args=["x"], kwargs={"note": SECRET}, options={"shadow": f"pay {SECRET}", "headers": headers})
    assert text_of(admin_client, ("job_change", [job.pk])).count(SECRET) > 3
    redact(settings)
    text = text_of(admin_client, ("job_change", [job.pk]))
    assert SECRET not in text
    assert "pay ***" in text
    assert "the shop" in text
    # A key that is made of something else is the project's to hide.
    headers["event"]["order_key"] = "Ada of Paris"
    job = make(options={"headers": headers})
    assert "Ada of Paris" in text_of(admin_client, ("job_change", [job.pk]))
    redact(settings, "tests.helpers.redactions.hide_errors_and_keys")
    assert "Ada of Paris" not in text_of(admin_client, ("job_change", [job.pk]))


def test_errors_do_not_tell_an_argument_that_is_hidden(settings, admin_client):
    job = failed()
    assert SECRET in of_job(job)
    redact(settings)
    pages = text_of(admin_client, ("job_change", [job.pk]), ("job_changelist", []))
    text = pages + of_job(job)
    assert SECRET not in text
    assert "no account ***" in text
    assert "ValueError" in text
    job.refresh_from_db()
    assert job.error == ENTRY, "what is stored stays"


@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        ({"card": ["4111-1111", 15], "cvc": "987"}, "card 4111-1111 of 15 with 987 is not 4111, 150 or x987"),
        ({"card": {"4111-1111": 15}, "cvc": [{"987": 1}]}, "card 4111-1111 of 15 with 987 is not 4111, 150 or x987"),
        ("it's", """it's, 'it\\'s' and "it's" """),
        ("a\nb\u00e9", 'a\nb\u00e9, "a\\nb\\u00e9"'),
        (datetime.date(2031, 5, 4), "2031-05-04, datetime.date(2031, 5, 4)"),
        (
            datetime.datetime(2031, 5, 4, 6, 7, tzinfo=datetime.UTC),
            "2031-05-04 06:07:00+00:00, 2031-05-04T06:07:00+00:00",
        ),
        (-17, "-17, minus 17"),
    ],
)
def test_in_whatever_form_it_stands_there(settings, hidden, says):
    redact(settings)
    seen = shown(Job.of({"task": tasks.effect.name, "args": [], "kwargs": {"note": jsonable(hidden, "x")}}))
    text = seen.blanked(says)
    for value in ("4111-1111", "987 ", " 15 ", "it's", "b\u00e9", "\\u00e9", "2031", "17"):
        assert value not in text, text
    if isinstance(hidden, dict):
        assert text == "card *** of *** with *** is not 4111, 150 or x987", "other words stay"


def test_nor_does_the_half_of_one_where_a_text_was_cut(settings):
    redact(settings)
    key = "".join(f"{number:04}" for number in range(700))
    seen = shown(Job.of({"task": tasks.effect.name, "args": [], "kwargs": {"note": key}}))
    for before in (1000, 1900):
        text = seen.blanked(scrub("." * before + key + "." * 1500, 4000))
        assert "0001" not in text
        assert "0690" not in text
        assert "characters cut" in text


def test_deleting_chosen_markers_neither_shows_nor_keeps_their_keys(settings, admin_client):
    job = failed()
    made = [Marker.objects.create(key=f"welcome:{SECRET}:{place}", kind="task", job=job.pk) for place in "ab"]
    redact(settings)
    url = reverse("admin:jobs_marker_changelist")
    chosen = {"action": "delete_selected", "_selected_action": [marker.pk for marker in made], "index": "0"}
    asked = admin_client.post(url, chosen).content.decode()
    assert SECRET not in asked
    assert "welcome:***:a" in asked
    admin_client.post(url, {**chosen, "post": "yes"})
    assert not Marker.objects.exists()
    told = LogEntry.objects.values_list("object_repr", flat=True)
    assert sorted(told) == ["welcome:***:a", "welcome:***:b"]


def test_a_project_may_hide_all_texts(settings, admin_client):
    """What a body's author writes otherwise into a text nobody can know here."""
    entry = {**ENTRY, "message": "Ada of Paris", "traceback": "Ada of Paris"}
    job = make("failed", error=entry, errors=[entry], unique_key="Ada of Paris")
    redact(settings, "tests.helpers.redactions.hide_errors_and_keys")
    text = text_of(admin_client, ("job_change", [job.pk]), ("job_changelist", [])) + of_job(job)
    assert "Ada of Paris" not in text


def test_events_of_a_task_that_ran_do_not_tell_it(settings, monkeypatch):
    """As a worker with ``-E`` sends them; and what ``celery inspect active`` is told."""
    told = []
    monkeypatch.setattr(pipe, "_write", lambda kind, fields: told.append({"kind": kind, **fields}))
    monkeypatch.setattr(worker_state, "wants_events", True)
    headers = {"argsrepr": "()", "kwargsrepr": f"{{'note': '{SECRET}'}}"}
    job = make("ready", kwargs={"note": SECRET}, options={"headers": headers})
    redact(settings)
    process = Runner(current_app._get_current_object(), "here")
    run = Run(tasks.effect, job, "default", process.slot)
    process._name(run, 0)
    [active] = worker_state.at_work()
    process.slot.free()
    pipe.send_start(run)
    for run.state, run.told in (("FAILURE", ValueError(SECRET)), ("RETRY", Retry(exc=ValueError(SECRET)))):
        pipe.send_outcome(run, 1.0)
    run.state, run.told, run.result = "SUCCESS", None, f"of {SECRET}"
    pipe.send_outcome(run, 1.0)
    assert {each["kind"] for each in told} > {"task-received", "task-failed", "task-retried", "task-succeeded"}
    text = json.dumps([*told, worker_state.text(active)])
    assert SECRET not in text
    assert "'note': '***'" in text


def test_what_is_nested_as_deep_as_it_may_be_can_be_shown(settings, admin_client):
    """A page has a deeper stack than a call."""
    redact(settings)
    deep: list = ["s3cret"]
    for _ in range(DEPTH - 3):
        deep = [deep]
    for call in ([deep], {"note": deep}):
        job = Job.objects.get(pk=tasks.noop.delay_many([call])[0].id)
        assert admin_client.get(reverse("admin:jobs_job_change", args=[job.pk])).status_code == 200
    assert admin_client.get(reverse("admin:jobs_job_changelist")).status_code == 200


def test_what_is_hidden_is_not_found_by_a_search(settings, admin_client):
    make(task="shop.resize", args=["IMG_00007.jpg"])
    assert len(listed(admin_client, q="IMG_00007")) == 1
    redact(settings)
    assert listed(admin_client, q="IMG_00007") == []
