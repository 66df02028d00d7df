"""What people see of durable tasks and do to them: the page of a job, the signals, and the commands."""

from __future__ import annotations

import html
import io
import json
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

import jobs
from jobs.contrib.durable import signals
from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.operations import by_hand
from jobs.lifecycle import transitions
from jobs.models import Action, Job
from jobs.testing import run_jobs
from tests import tasks
from tests.contrib.durable import bodies
from tests.contrib.durable.bodies import CALLS, DAY, FAIL
from tests.helpers.redactions import redact
from tests.helpers.rows import make_node
from tests.helpers.why import ask, codes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _clean():
    CALLS.clear()
    FAIL.clear()


def run(task, *args, until=None, **kwargs) -> Job:
    result = task.delay(*args, **kwargs)
    run_jobs(until=until, raises=False)
    return Job.objects.get(pk=result.id)


def later(days: float):
    return timezone.now() + days * DAY


def parents() -> Job:
    """A job that waits for two children, which wait for signals."""
    return run(bodies.gathers, [bodies.waits.s("child:1"), bodies.waits.s("child:2")])


def text_of(client, job: Job) -> str:
    page = client.get(reverse("admin:jobs_job_change", args=[job.pk]))
    assert page.status_code == 200
    return html.unescape(page.content.decode())


def steps_on(page: str) -> dict[str, str]:
    """The words of each row of the table, by the step's name."""
    table = page.partition('id="job-steps"')[2].partition("</table>")[0].partition("<tbody>")[2]
    rows = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in table.split("</tr>")[:-1]]
    names = re.findall(r'<th scope="row">(.*?) <span', table)
    return dict(zip(names, rows, strict=True))


def command(*args: str) -> str:
    out = io.StringIO()
    call_command("jobs", *args, stdout=out)
    return out.getvalue()


#: 7000 years in days.
AGES = re.compile(r"\b2\d{6} d\b|\b2.\d{3}.\d{3} d\b")


# The page of a job


def test_the_page_shows_each_step(admin_client):
    job = run(bodies.onboard, "a", until=later(3))
    shown = steps_on(text_of(admin_client, job))
    assert list(shown) == ["reserve", "sleep", "wait for approved:a"]
    assert re.search(r'step done .* \S+ s \{"key": "a:reserve"\}$', shown["reserve"])
    # Its row says that it waits.
    assert Step.objects.get(name="sleep").state == "waiting"
    assert "sleep over" in shown["sleep"]
    assert "waiting" in shown["wait for approved:a"]
    assert "gives up: in " in shown["wait for approved:a"]
    assert shown["wait for approved:a"].endswith("waits for the signal approved:a")


def test_the_page_shows_what_a_wait_was_told(admin_client):
    job = run(bodies.waits, "k")
    signals.signal("k", {"by": "ada"})
    run_jobs()
    shown = steps_on(text_of(admin_client, job))
    assert re.search(r'wait done .* \{"by": "ada"\}$', shown["wait for k"])


def test_a_sleep_is_over_when_the_job_goes_on_or_has_ended(admin_client):
    job = run(bodies.late, "k")
    page = text_of(admin_client, job)
    assert "sleep sleep waiting" in steps_on(page)["sleep"]
    assert "goes on: in 29 d" in steps_on(page)["sleep"]
    assert by_hand.run_now(job.pk, "default")
    assert "sleep sleep over" in steps_on(text_of(admin_client, job))["sleep"]
    assert transitions.cancel(job.pk, "default")
    assert "sleep sleep over" in steps_on(text_of(admin_client, job))["sleep"]


def test_the_page_shows_children_as_links_and_what_failed(admin_client):
    job = run(bodies.gathers, [tasks.effect.s("a"), bodies.fails.s("no")])
    page = text_of(admin_client, job)
    row = steps_on(page)["gather"]
    assert "children failed" in row
    assert "LookupError: no" in row
    for task, state in (("tests.durable.fails", "failed"), (tasks.effect.name, "succeeded")):
        child = Job.objects.get(task=task)
        assert f"{task.rpartition('.')[2]} {str(child.pk)[-8:]} {state}" in row
        assert reverse("admin:jobs_job_change", args=[child.pk]) in page.partition('id="job-steps"')[2]


def test_the_page_says_how_often_a_step_failed_and_how_long_it_took(admin_client, settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [3600]}
    FAIL["a"] = [ConnectionError("away")]
    job = run(bodies.steps, ["a"])
    row = steps_on(text_of(admin_client, job))["a"]
    assert "waiting" in row
    assert "1 failed attempt ConnectionError: away" in row
    assert "goes on: in " in row


def test_a_step_took_as_long_as_its_function():
    from celery import shared_task

    @shared_task(bind=True, durable=True, name="tests.durable.slow")
    def slow(self):
        self.step("a", bodies.nap, 0.3)

    job = run(slow)
    [step] = json.loads(command("steps", str(job.pk), "--json"))
    assert 0.3 <= step["seconds"] < 30


def test_a_job_that_is_not_durable_has_no_steps(admin_client):
    assert "job-steps" not in text_of(admin_client, run(tasks.effect, "a")).partition("</style>")[2]


def test_what_is_secret_is_nowhere(admin_client, settings):
    done, waits = run(bodies.steps, ["s3cret"]), run(bodies.waits, "s3cret:1")
    jobs.signal("s3cret:2", {"by": "s3cret"})
    taken = run(bodies.waits, "s3cret:2")
    signal = Signal.objects.get()
    redact(settings, "tests.contrib.durable.test_people.hide")
    pages = [text_of(admin_client, each) for each in (done, waits, taken)]
    listed = reverse("admin:jobs_signal_changelist")
    pages += [admin_client.get(url).content.decode() for url in (listed, f"{listed}{signal.pk}/change/")]
    for each in (done, waits, taken):
        pages += [
            command("steps", str(each.pk)),
            command("steps", str(each.pk), "--json"),
            command("why", str(each.pk)),
        ]
    jobs.signal("s3cret:3", "s3cret")
    pages += [command("signal"), command("signal", "--json")]
    pages.append(admin_client.get(reverse("admin:jobs_signal_changelist")).content.decode())
    assert [page for page in pages if "s3cret" in page] == []
    assert "***" in pages[-1]
    assert (
        admin_client.get(reverse("admin:jobs_signal_changelist"), {"q": "s3"}).content.decode().count("short-link") == 0
    )


def hide(task: str, name: str, value):
    return "***"


# Sending a signal


def send(client, job: Job, payload: str | None = None) -> str:
    shown = re.search('name="for" value="([0-9a-f]+)"', text_of(client, job))
    given = {"for": shown[1] if shown else ""} | ({} if payload is None else {"payload": payload})
    page = client.post(reverse("admin:jobs_signal_send", args=[job.pk]), given, follow=True)
    assert page.redirect_chain[-1][0] == reverse("admin:jobs_job_change", args=[job.pk])
    return html.unescape(page.content.decode())


def test_the_page_sends_the_signal_that_the_job_waits_for(admin_client):
    job = run(bodies.waits, "approved:42")
    page = text_of(admin_client, job)
    assert f'action="{reverse("admin:jobs_signal_send", args=[job.pk])}"' in page
    assert "csrfmiddlewaretoken" in page
    assert "Sent: the job goes on." in send(admin_client, job, '{"by": "ada"}')
    run_jobs()
    job.refresh_from_db()
    assert job.result == {"by": "ada"}
    [entry] = LogEntry.objects.all()
    assert (entry.object_id, entry.get_change_message()) == (str(job.pk), "Sent the signal approved:42")
    assert "waits for no signal any more" in send(admin_client, job)
    assert Signal.objects.count() == 1
    assert list(Action.objects.values_list("job", "what", "by", "why")) == [(job.pk, "signal", "admin", "approved:42")]


def test_a_page_does_not_send_what_the_job_came_to_wait_for_after_it(admin_client):
    job = run(bodies.waits, "approve-small")
    shown = re.search('name="for" value="([0-9a-f]+)"', text_of(admin_client, job))
    Job.objects.filter(pk=job.pk).update(waits_for="signal:approve-big")
    url = reverse("admin:jobs_signal_send", args=[job.pk])
    page = admin_client.post(url, {"for": shown[1]}, follow=True)
    assert "waits for another signal now" in page.content.decode()
    assert not Signal.objects.exists()


def test_a_payload_is_true_if_nothing_is_said_and_json_else(admin_client):
    job = run(bodies.waits, "k")
    assert "cannot be kept as JSON" in send(admin_client, job, "{no")
    assert not Signal.objects.exists()
    assert not LogEntry.objects.exists()
    send(admin_client, job)
    assert Signal.objects.get().payload is True


def test_an_older_job_takes_the_signal(admin_client):
    older, job = run(bodies.waits, "k"), run(bodies.waits, "k")
    assert f"The job {older.pk} takes it" in send(admin_client, job)


def test_who_may_send(staff):
    job = run(bodies.waits, "k")
    url = reverse("admin:jobs_signal_send", args=[job.pk])
    client = staff("view_job")
    ada = User.objects.get()
    for codenames in (("view_job", "view_signal"), ("view_job", "send_signal"), ("view_signal", "send_signal")):
        ada.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert client.post(url).status_code == 403
        if "view_job" in codenames:
            assert url not in text_of(client, job)
    ada.user_permissions.set(Permission.objects.filter(codename__in=("view_job", "view_signal", "send_signal")))
    assert url in text_of(client, job)
    assert client.get(url).status_code == 405
    assert client.post(url).status_code == 302


# The list of signals


def test_signals_are_listed_filtered_and_searched(admin_client):
    jobs.signal("approved:1", {"by": "ada"})
    jobs.signal("paid:1")
    job = run(bodies.waits, "paid:1")
    url = reverse("admin:jobs_signal_changelist")

    def shown(**query: str) -> list[str]:
        page = admin_client.get(url, query)
        assert page.status_code == 200
        return [row.key for row in page.context["cl"].result_list]

    assert shown() == ["paid:1", "approved:1"]
    assert shown(taken_by__isempty="1") == ["approved:1"]
    assert shown(taken_by__isempty="0") == ["paid:1"]
    assert shown(q="appr") == ["approved:1"]
    assert shown(q="ved:1") == []
    page = admin_client.get(reverse("admin:jobs_signal_change", args=[Signal.objects.get(key="paid:1").pk]))
    assert reverse("admin:jobs_job_change", args=[job.pk]) in page.content.decode()


# Why


def test_why_a_job_waits_for_a_signal():
    job = run(bodies.waits, "approved:42", timeout=7200)
    assert codes(job.pk)[0] == "waits_for_signal"
    reason = ask(job.pk)["reasons"][0]
    assert re.fullmatch(
        r"It has been waiting for the signal approved:42 for \S+ s, and gives up in [\d.]+ \w+\.", reason["says"]
    )
    assert reason["cure"] == "This lets it go on: manage.py jobs signal approved:42"
    assert reason["evidence"]["key"] == "approved:42"


def test_a_key_is_quoted_for_the_shell():
    job = run(bodies.waits, "it's here")
    reason = ask(job.pk)["reasons"][0]
    assert reason["cure"].endswith("""manage.py jobs signal 'it'"'"'s here'""")
    assert re.fullmatch(r"It has been waiting for the signal it's here for \S+ s\.", reason["says"])


def test_why_a_job_sleeps():
    job = run(bodies.late, "k")
    reason = ask(job.pk)["reasons"][0]
    assert (reason["code"], reason["cure"]) == ("sleeps", f"Without waiting: manage.py jobs run {job.pk}")
    assert reason["says"] == "It sleeps (sleep), and goes on in 29 d."


def test_why_a_job_waits_for_children():
    job = parents()
    reason = ask(job.pk)["reasons"][0]
    child = Job.objects.filter(parent_id=job.pk).order_by("pk")[0]
    assert (reason["code"], reason["cure"]) == ("waits_for_children", f"manage.py jobs why {child.pk}")
    assert reason["says"].startswith("It has been waiting for 2 of its 2 children for ")
    jobs.signal("child:1")
    run_jobs()
    assert ask(job.pk)["reasons"][0]["evidence"]["left"] == 1


def test_why_a_step_is_tried_again(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [3600]}
    FAIL["a"] = [ConnectionError("away")]
    job = run(bodies.steps, ["a"])
    reason = ask(job.pk)["reasons"][0]
    assert reason["code"] == "step_retry"
    assert reason["says"].startswith("Its step a has failed once (ConnectionError: away), and is tried again in ")


def test_nobody_sees_the_year_9000(admin_client):
    waits, parent = run(bodies.waits, "k"), parents()
    for job in (waits, parent):
        assert job.run_at == transitions.NEVER
        pages = [text_of(admin_client, job), command("why", str(job.pk)), command("show", str(job.pk))]
        assert [page for page in pages if "9000-01-01" in page or AGES.search(page)] == []
    listed = html.unescape(admin_client.get(reverse("admin:jobs_job_changelist")).content.decode())
    assert not AGES.search(listed)
    found = json.loads(command("status", "--json"))
    assert found["due"] == {"count": 0, "lag_seconds": 0.0}
    assert found["jobs"]["scheduled"] == 4


# The commands


def test_steps_are_listed():
    job = run(bodies.onboard, "a", until=later(3))
    text = command("steps", str(job.pk))
    assert re.search(r"reserve +step +done .*\{\"key\": \"a:reserve\"\}", text)
    assert re.search(r"wait for approved:a +wait +waiting .* 20", text)
    found = json.loads(command("steps", str(job.pk), "--json"))
    assert [(each["name"], each["kind"], each["state"]) for each in found] == [
        ("reserve", "step", "done"),
        ("sleep", "sleep", "over"),
        ("wait for approved:a", "wait", "waiting"),
    ]
    assert "has no steps" in command("steps", str(run(tasks.effect, "x").pk))


def test_a_step_is_done_again():
    FAIL["b"] = [LookupError("no")]
    job = run(bodies.steps, ["a", "b"])
    text = command("steps", str(job.pk), "--rerun", "a")
    assert text.endswith(f"does the step 'a' again. To run it: manage.py jobs retry {job.pk}\n")
    action = Action.objects.get()
    assert (action.job, action.what, action.why) == (job.pk, "rerun", "a")
    command("retry", str(job.pk))
    run_jobs()
    assert CALLS == ["a", "b", "a", "b"]
    with pytest.raises(CommandError, match="has succeeded, and does not run again"):
        command("steps", str(job.pk), "--rerun", "a")


def test_what_follows_a_rerun_is_said(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [3600]}
    FAIL["b"] = [ConnectionError("away")]
    again = run(bodies.steps, ["a", "b"])
    found = json.loads(command("steps", str(again.pk), "--rerun", "a", "--json"))
    assert found["next"] == f"If the cause is gone: manage.py jobs run {again.pk}"
    waits = run(bodies.takes_back, "k")
    assert command("steps", str(waits.pk), "--rerun", "one").endswith("lets it go on: manage.py jobs signal go:k\n")
    parent = parents()
    child = Job.objects.filter(parent_id=parent.pk).order_by("pk")[0]
    assert command("steps", str(parent.pk), "--rerun", "gather").endswith(f"again. manage.py jobs why {child.pk}\n")


def test_a_rerun_is_refused_with_its_cure():
    job = run(bodies.takes_back, "k")
    with pytest.raises(CommandError, match="has no step 'onee'.*one"):
        command("steps", str(job.pk), "--rerun", "onee")
    Job.objects.filter(pk=job.pk).update(state="running", node=make_node(), token=1)
    with pytest.raises(CommandError, match=f"is running: wait for its end, or manage.py jobs cancel {job.pk}"):
        command("steps", str(job.pk), "--rerun", "one")
    assert Step.objects.filter(name="one").exists()
    assert not Action.objects.exists()


def test_a_signal_is_sent_by_command():
    job = run(bodies.waits, "approved:42")
    assert command("signal", "approved:42", "--payload", '{"by": "ada"}') == f"Sent. {job} goes on.\n"
    assert Action.objects.get(job=job.pk, what="signal").by
    run_jobs()
    job.refresh_from_db()
    assert job.result == {"by": "ada"}
    run(bodies.waits, "approved:43")
    text = command("signal", "approve:43")
    assert text.startswith("Sent. No job waits for 'approve:43' now")
    assert "approved:43" in text
    assert json.loads(command("signal", "x", "--json")) == {"key": "x", "database": "default", "job": None}
    with pytest.raises(CommandError, match="Not sent, --payload is JSON .text too"):
        command("signal", "x", "--payload", "paid")
    with pytest.raises(CommandError, match="Not sent"):
        command("signal", "k" * 300)


def test_what_is_waited_for_is_listed():
    assert command("signal") == "No job waits for a signal.\nThere is no signal that nobody took.\n"
    job = run(bodies.waits, "approved:42")
    run(bodies.late, "k")
    jobs.signal("paid:1", 7)
    text = command("signal")
    assert re.search(rf"approved:42 +{job.pk} +tests.durable.waits", text)
    assert re.search(r"paid:1 +7 ", text)
    found = json.loads(command("signal", "--json"))
    assert [each["key"] for each in found["waiting"]] == ["approved:42"]
    assert [(each["key"], each["payload"]) for each in found["untaken"]] == [("paid:1", 7)]
    assert signals.waited_for("default") == ["approved:42"]


def test_a_copy_of_a_database_forgets_what_nobody_took():
    from jobs.contrib.adoption import activation

    jobs.signal("paid:1")
    assert activation.survey("default")["signals"] == 1
    activation.cancel_all("default")
    assert not Signal.objects.exists()


def test_why_says_what_is_taken_back():
    job = run(bodies.late, "a", until=later(40))
    assert job.state == "cancelled"
    undo = Job.objects.get(task="jobs.compensate")
    found = {reason["code"]: reason for reason in ask(job.pk)["reasons"]}
    assert found["taken_back"]["evidence"] == {"job": str(undo.pk), "state": "succeeded"}
    assert str(undo.pk) in found["taken_back"]["cure"]


def test_why_names_the_child_that_is_retried_first():
    job = run(bodies.gathers, [bodies.fails.s("no")])
    child = Job.objects.get(task=bodies.fails.name)
    assert job.state == "failed"
    first, last = ask(job.pk)["reasons"]
    assert (first["code"], last["code"]) == ("child_failed", "failed")
    assert f"jobs retry {child.pk}; " in first["cure"]
    error = job.error
    Job.objects.filter(pk=job.pk).update(error={**error, "message": "of something else"})
    assert codes(job.pk) == ["failed"]
    Job.objects.filter(pk=job.pk).update(error=error)
    Job.objects.filter(pk=child.pk).update(state="succeeded")
    assert codes(job.pk) == ["failed"]
