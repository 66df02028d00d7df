"""What people may not see of arguments and results, they see nowhere."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command
from django.urls import reverse

from jobs import checks
from jobs.conf import problems
from tests import tasks
from tests.rows import make

pytestmark = pytest.mark.django_db


def hide_secrets(task: str, name: str, value):
    if name == "note" and value == "bad":
        raise ValueError(value)
    return "***" if name in ("note", "result", "rest") else value


def redact(settings, name="tests.test_redaction.hide_secrets"):
    settings.JOBS = {**settings.JOBS, "REDACT": name}


def everywhere(job, client) -> str:
    out = io.StringIO()
    call_command("jobs", "show", str(job.pk), stdout=out)
    call_command("jobs", "show", str(job.pk), "--json", stdout=out)
    call_command("jobs", "list", "--json", stdout=out)
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
    assert not list(checks.check_settings())
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
