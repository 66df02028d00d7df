"""The buttons of the admin: who may press them, what they do, and what they leave behind."""

from __future__ import annotations

import html
import json
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import resolve, reverse

from jobs.conf import celery_app
from jobs.contrib.operator.pages import jobs as many
from jobs.models import Action, Cancellation, Job, Marker
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db

LIST = reverse("admin:jobs_job_changelist")
MANY = reverse("admin:jobs_job_operate")
WHAT = {
    "retry": ("failed", "retry_job", ""),
    "run": ("scheduled", "retry_job", ""),
    "cancel": ("ready", "cancel_job", ""),
    "kill": ("running", "kill_job", ""),
    "move": ("ready", "change_job", "mail"),
    "prioritize": ("scheduled", "change_job", "7"),
    "delete": ("failed", "delete_job", ""),
}
AFTER = {
    "retry": {"state": "ready"},
    "run": {"state": "ready"},
    "cancel": {"state": "cancelled"},
    "kill": {"state": "cancelled"},
    "move": {"state": "ready", "queue": "mail", "options": {"shadow": "other"}},
    "prioritize": {"state": "scheduled", "priority": 7, "rank": 7},
}


@pytest.fixture
def staff(staff):
    """Who may look, and what is given."""
    return lambda *codenames: staff("view_job", *codenames)


def page(job: Job, name: str = "change") -> str:
    return reverse(f"admin:jobs_job_{name}", args=[job.pk])


def said(response) -> str:
    return " ".join(str(message) for message in response.context["messages"])


def hidden(text: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="(operation|keys|state|value|why)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found}


# One job


@pytest.mark.parametrize("verb", AFTER)
def test_a_button_does_it_and_leaves_who_and_why(staff, verb):
    state, permission, value = WHAT[verb]
    client = staff(permission)
    job = make(state, options={"exchange": "x", "routing_key": "y", "shadow": "other"})
    assert f'name="operation" value="{verb}"' in client.get(page(job)).content.decode()
    form = {"operation": verb, "value": value, "why": "it is fixed"}
    response = client.post(page(job, "operate_one"), form, follow=True)
    assert f"(was {state})" in said(response)
    assert Job.objects.values(*AFTER[verb]).get() == AFTER[verb]
    action, entry = Action.objects.get(), LogEntry.objects.get()
    why = f"{value}: it is fixed" if value else "it is fixed"
    assert (action.job, action.what, action.by, action.why) == (job.pk, verb, "ada", why)
    assert (entry.object_id, entry.user.username) == (str(job.pk), "ada")
    assert "it is fixed" in entry.get_change_message()
    assert "ada" in response.content.decode().partition("What people did")[2]


@pytest.mark.parametrize("verb", WHAT)
def test_who_may_not_sees_no_button_and_can_do_nothing(staff, verb):
    state, permission, value = WHAT[verb]
    others = {codename for _, codename, _ in WHAT.values()} - {permission}
    client, job = staff(*others), make(state)
    assert f'value="{verb}"' not in client.get(page(job)).content.decode()
    before = Job.objects.values().get()
    assert client.post(page(job, "operate_one"), {"operation": verb, "value": value}).status_code == 403
    assert client.post(MANY, {"operation": verb, "value": value, "scope": "all"}).status_code == 403
    text = client.post(LIST, {"action": verb, "_selected_action": str(job.pk), "index": "0"}, follow=True).content
    assert b"Which jobs?" not in text
    assert Job.objects.values().get() == before
    assert not Action.objects.exists()
    assert not LogEntry.objects.exists()


def test_who_may_not_look_may_not_act(client):
    job = make("failed")
    user = User.objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="retry_job"))
    client.force_login(user)
    for url in (page(job, "operate_one"), MANY):
        assert client.post(url, {"operation": "retry", "scope": "all"}).status_code == 403
    assert Job.objects.get().state == "failed"


def test_only_by_post_and_with_a_token(staff):
    job, client = make("failed"), staff("retry_job")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    for url in (page(job, "operate_one"), MANY):
        assert client.get(url, {"operation": "retry", "scope": "all"}).status_code == 405
        assert strict.post(url, {"operation": "retry", "scope": "all"}).status_code == 403
    assert Job.objects.get().state == "failed"


def test_what_is_refused_says_why_and_leaves_nothing(staff):
    client, job = staff("retry_job", "cancel_job"), make("succeeded")
    response = client.post(page(job, "operate_one"), {"operation": "retry"}, follow=True)
    assert "is succeeded: nothing to retry" in said(response)
    assert not Action.objects.exists()
    assert not LogEntry.objects.exists()
    assert client.post(page(job, "operate_one"), {"operation": "drop"}).status_code == 403


def test_a_deleted_job_is_gone_and_the_log_remains(staff):
    client, job, other = staff("delete_job", "retry_job"), make("failed"), make("failed")
    client.post(page(job, "operate_one"), {"operation": "retry"})
    Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=other.finished_at)
    response = client.post(page(job, "operate_one"), {"operation": "delete", "why": "a test"}, follow=True)
    assert response.redirect_chain[-1][0] == LIST
    assert "deleted (was cancelled)" in said(response)
    assert Job.objects.get() == other
    assert not Action.objects.exists()
    entry = LogEntry.objects.first()
    assert (entry.object_id, entry.object_repr, entry.is_deletion()) == (str(job.pk), str(job), True)
    assert "a test" in entry.get_change_message()


@pytest.mark.parametrize("state", ["scheduled", "ready", "running"])
def test_what_has_not_ended_is_not_deleted(staff, state):
    client, job = staff("delete_job"), make(state)
    assert 'value="delete"' not in client.get(page(job)).content.decode()
    response = client.post(page(job, "operate_one"), {"operation": "delete"}, follow=True)
    assert f"is {state}: nothing to delete" in said(response)
    assert Job.objects.get() == job


def test_what_others_replay_is_not_deleted(staff):
    client, job = staff("delete_job"), make("succeeded")
    Marker.objects.create(key="k", kind="task", job=job.pk)
    assert "a marker points at it" in said(client.post(page(job, "operate_one"), {"operation": "delete"}, follow=True))
    assert Job.objects.get() == job


@pytest.mark.parametrize(
    ("verb", "value", "expected"),
    [
        ("move", "", "Name a queue"),
        ("move", "x" * 256, "Name a queue"),
        ("prioritize", "256", "from 0 to 255"),
        ("prioritize", "-1", "from 0 to 255"),
        ("prioritize", "high", "from 0 to 255"),
    ],
)
def test_a_value_that_cannot_be(staff, verb, value, expected):
    client, job = staff("change_job"), make("ready")
    for url in (page(job, "operate_one"), MANY):
        response = client.post(url, {"operation": verb, "value": value, "scope": "all"}, follow=True)
        assert expected in said(response)
    assert Job.objects.get() == job
    assert not Action.objects.exists()


def test_a_queue_that_the_app_does_not_know(staff, monkeypatch):
    client, job = staff("change_job"), make("ready")
    monkeypatch.setattr(celery_app().amqp.queues, "create_missing", False)
    response = client.post(page(job, "operate_one"), {"operation": "move", "value": "nowhere"}, follow=True)
    assert "the app knows no queue 'nowhere'; known are: " in said(response)
    assert Job.objects.get().queue == job.queue


def test_a_running_job_is_asked_to_end(staff):
    client, job = staff("cancel_job"), make("running")
    response = client.post(page(job, "operate_one"), {"operation": "cancel"}, follow=True)
    assert "asked to end" in said(response)
    assert Cancellation.objects.get().pk == job.pk
    assert Action.objects.get().what == "cancel"


# Many


def choose(client, verb: str, *jobs: Job, query: str = "") -> tuple[str, str, dict[str, str]]:
    """The text of the confirmation, where its form goes, and what is hidden in that."""
    data = {"action": verb, "_selected_action": [str(job.pk) for job in jobs], "index": "0"}
    text = client.post(f"{LIST}?{query}", data).content.decode()
    url = html.unescape(re.search(r'class="job-operate" method="post" action="([^"]*)"', text)[1])
    return text, url, hidden(text)


def test_those_that_are_chosen_after_a_confirmation(staff):
    client = staff("retry_job")
    chosen, other = [make("failed"), make("failed")], make("failed")
    text, url, form = choose(client, "retry", *chosen)
    assert "The 2 that are chosen" in text
    assert "All that match the filters of the list: 3" in text
    assert not Action.objects.exists(), "nothing was done yet"
    response = client.post(url, {**form, "scope": "chosen", "why": "again"}, follow=True)
    assert said(response) == "2 jobs retried"
    assert [Job.objects.get(pk=job.pk).state for job in (*chosen, other)] == ["ready", "ready", "failed"]
    assert {action.why for action in Action.objects.all()} == {"again"}
    assert LogEntry.objects.count() == 2


def test_who_asks_before_counts_without_what_the_list_shows_of_each(staff, django_assert_max_num_queries):
    client, job = staff("retry_job"), make("failed")
    with django_assert_max_num_queries(30) as found:
        text, _, _ = choose(client, "retry", job)
    assert "All that match the filters of the list: 1" in text
    counts = [each["sql"] for each in found.captured_queries if each["sql"].startswith("SELECT COUNT(*)")]
    assert any("jobs_job" in sql for sql in counts)
    assert not any("error" in sql for sql in counts)


def test_of_very_many_the_newest_are_looked_at_to_say_how_many(staff, monkeypatch):
    client = staff("retry_job")
    make("failed", task="shop.tasks.other")
    jobs = [make("failed", task=f"shop.tasks.{name}") for name in ("other", "this", "other")]
    monkeypatch.setattr(many, "COUNTED", 3)
    text, _, _ = choose(client, "retry", jobs[0], query="task=shop.tasks.other")
    assert "All that match the filters of the list: 2, and perhaps more" in text
    monkeypatch.setattr(many, "COUNTED", 4)
    text, _, _ = choose(client, "retry", jobs[0], query="task=shop.tasks.other")
    assert "All that match the filters of the list: 3 (" in text


def test_of_very_many_that_wait_so_many_are_counted_to_say_how_many(staff, monkeypatch):
    client = staff("cancel_job")
    jobs = [make("ready") for _ in range(4)]
    monkeypatch.setattr(many, "COUNTED", 3)
    text, _, _ = choose(client, "cancel", jobs[0], query="state__exact=ready")
    assert "All that match the filters of the list: 3, and perhaps more" in text
    monkeypatch.setattr(many, "COUNTED", 4)
    text, _, _ = choose(client, "cancel", jobs[0], query="state__exact=ready")
    assert "All that match the filters of the list: 4 (" in text


def test_all_that_match_the_filters_and_no_other(staff):
    client = staff("cancel_job")
    jobs = [make("ready") for _ in range(5)]
    others = [make("scheduled"), make("failed"), make("ready", task="shop.tasks.other")]
    text, url, form = choose(client, "cancel", jobs[0], query="state__exact=ready&q=tests.tasks")
    assert "All that match the filters of the list: 5" in text
    response = client.post(url, {**form, "scope": "all"}, follow=True)
    assert said(response) == "5 jobs cancelled"
    assert {Job.objects.get(pk=job.pk).state for job in jobs} == {"cancelled"}
    assert [Job.objects.get(pk=job.pk).state for job in others] == ["scheduled", "failed", "ready"]


def test_an_honest_result(staff):
    client = staff("retry_job")
    one = make("failed", unique_key="monday", unique_until="started")
    holder = make("ready", unique_key="monday", unique_until="started")
    plain, done = make("failed"), make("succeeded")
    _, url, form = choose(client, "retry", one, plain, done)
    text = said(client.post(url, {**form, "scope": "chosen"}, follow=True))
    assert text.startswith("1 job retried, 2 refused: ")
    assert f"{one.pk} is failed, and stays" in text
    assert str(holder.pk) in text
    assert f"{done.pk} is succeeded: nothing to retry" in text


def test_many_go_step_by_step_and_each_once(staff, monkeypatch):
    monkeypatch.setattr(many, "BUDGET", 0.0)
    monkeypatch.setattr(many, "STEP", 2)
    client = staff("cancel_job")
    for _ in range(5):
        make("ready")
    _, url, form = choose(client, "cancel", Job.objects.first())
    response, steps = client.post(url, {**form, "scope": "all", "why": "too many"}), 0
    while response.status_code == 200:
        steps += 1
        text = response.content.decode()
        assert f"{steps} cancelled, 0 refused so far" in text
        response = client.post(url, hidden(text))
    assert steps == 5
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    assert Action.objects.filter(what="cancel", why="too many").count() == 5
    assert said(client.get(LIST)) == "5 jobs cancelled"


def test_all_means_what_the_command_means_unless_a_state_is_asked_for(staff):
    client = staff("retry_job")
    failed, cancelled = make("failed"), make("cancelled")
    text, url, form = choose(client, "retry", failed)
    assert "All that match the filters of the list: 1 (failed)" in text
    assert said(client.post(url, {**form, "scope": "all"}, follow=True)) == "1 job retried"
    assert Job.objects.get(pk=cancelled.pk).state == "cancelled"
    text, url, form = choose(client, "retry", cancelled, query="state__exact=cancelled")
    assert said(client.post(url, {**form, "scope": "all"}, follow=True)) == "1 job retried"
    assert Job.objects.get(pk=cancelled.pk).state == "ready"


@pytest.mark.slow
def test_from_a_later_page_of_the_list(staff, monkeypatch):
    monkeypatch.setattr(many, "BUDGET", 0.0)
    client = staff("retry_job")
    jobs = [make("failed") for _ in range(60)]
    _, url, form = choose(client, "retry", jobs[0], query="state__exact=failed&p=last")
    response, steps = client.post(url, {**form, "scope": "all"}), 1
    while response.status_code == 200:
        steps += 1
        response = client.post(url, hidden(response.content.decode()))
    assert (response.status_code, steps) == (302, 61)
    assert {job.state for job in Job.objects.all()} == {"ready"}
    assert client.post(f"{MANY}?nope=1", {"operation": "retry", "scope": "all"}).status_code == 400


def test_djangos_own_offer_of_all_is_not_made(staff):
    client = staff("retry_job")
    jobs = [make("failed") for _ in range(60)]
    assert "across all pages" not in client.get(LIST).content.decode()
    data = {"action": "retry", "_selected_action": [str(jobs[0].pk)], "select_across": "1", "index": "0"}
    text = client.post(LIST, data).content.decode()
    assert len(json.loads(hidden(text)["keys"])) == 50


def test_jobs_do_not_stay_locked_with_atomic_requests(settings):
    for name in ("job_operate", "job_operate_one"):
        args = [] if name == "job_operate" else ["00000000-0000-0000-0000-000000000000"]
        view = resolve(reverse(f"admin:jobs_{name}", args=args)).func
        assert "default" in view._non_atomic_requests


def test_a_reason_that_no_database_takes(staff):
    client, job = staff("retry_job"), make("failed")
    client.post(page(job, "operate_one"), {"operation": "retry", "why": "a\0b" + "x" * 5000})
    assert len(Action.objects.get().why) <= 1100
    assert "\0" not in Action.objects.get().why


def test_those_that_are_gone_by_then_are_counted(staff):
    client, stays, goes = staff("retry_job"), make("failed"), make("failed")
    _, url, form = choose(client, "retry", stays, goes)
    goes.delete()
    assert said(client.post(url, {**form, "scope": "chosen"}, follow=True)) == "1 job retried, 1 refused: 1 is gone"


def test_many_go_to_another_queue_step_by_step(staff, monkeypatch):
    monkeypatch.setattr(many, "BUDGET", 0.0)
    client = staff("change_job")
    jobs = [make("ready"), make("scheduled"), make("ready")]
    ended = make("failed")
    text, url, form = choose(client, "move", jobs[0])
    assert "To which queue:" in text
    response = client.post(url, {**form, "scope": "all", "value": "mail"})
    while response.status_code == 200:
        response = client.post(url, hidden(response.content.decode()))
    assert said(client.get(LIST)) == "3 jobs moved to mail"
    assert {Job.objects.get(pk=job.pk).queue for job in jobs} == {"mail"}
    assert Job.objects.get(pk=ended.pk).queue == ended.queue


def test_progress_that_somebody_wrote_himself_is_refused(staff):
    client = staff("cancel_job")
    state = json.dumps({"keys": None, "group": "", "last": "", "done": 0, "refused": 0, "named": []})
    assert client.post(MANY, {"operation": "cancel", "state": state}).status_code == 403
    assert client.post(MANY, {"operation": "cancel", "keys": "no json"}).status_code == 403
    assert client.post(MANY, {"operation": "cancel", "keys": "[1, {}]"}).status_code == 403
