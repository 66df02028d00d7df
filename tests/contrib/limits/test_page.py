"""The page of the limits: which hold, how far they are used, and the form that sets one by hand."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from jobs.contrib.limits import limits, usage
from jobs.maintenance import clock
from jobs.models import Job, Limit
from tests import tasks
from tests.contrib.limits import tasks as bodies
from tests.contrib.limits.claiming import claim, end, take

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("node")]

URL, SET, REMOVE = (reverse(f"admin:jobs_limit_{name}") for name in ("changelist", "set", "remove"))
MAIL = {"kind": "queue", "name": "mail", "concurrency": "1", "rate": "", "why": "they asked"}


def row(client: Client, name: str) -> list[str]:
    """The cells of a limit, in words."""
    text = client.get(URL).content.decode()
    [found] = [each for each in re.findall(r"(?s)<tr>(.*?)</tr>", text) if f" {name}</th>" in each]
    cells = re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", found)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells[:-1]]


def test_the_page_says_where_a_limit_comes_from_and_how_far_it_is_used(staff, settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"concurrency": 3, "rate": "100/m"}}}
    bodies.two_at_once.delay_many([(n,) for n in range(5)])
    assert take() == [0, 1]
    bodies.five_a_second.delay_many([(n,) for n in range(2)])
    assert take() == [0]
    limits.set_by_hand("tests.tasks.noop", 7, None, "ada", "it leaks")
    client = staff("view_limit")
    two = ["task tests.contrib.limits.tasks.two_at_once", "2", "-", "2", "3", "no slot is free", "the task's code"]
    assert row(client, "tests.contrib.limits.tasks.two_at_once") == two
    assert row(client, "tests.contrib.limits.tasks.one_of_a_customer")[1] == "1 for every {customer}"
    assert row(client, "mail") == ["queue mail", "3", "100/m", "0", "0", "-", "the settings"]
    noop = row(client, "tests.tasks.noop")
    assert noop[:6] == ["task tests.tasks.noop", "7", "-", "0", "0", "-"]
    assert noop[6].startswith("by hand: ada,")
    assert noop[6].endswith("(it leaks)")
    assert "<button" not in client.get(URL).content.decode().partition("jobs-limits")[2], "may only look"


def test_what_is_not_said_stays_as_it_was_set(staff):
    """Else whoever sets a rate takes the concurrency away, and nobody says so."""
    call_command("jobs", "limit", "mail", "--rate", "10/m")
    call_command("jobs", "limit", "mail", "--concurrency", "3")
    assert limits.read()["@mail"] == (3, "10/m")
    form = staff("view_limit", "set_limit").get(URL, {"kind": "queue", "name": "mail"}).context["form"]
    assert (form["concurrency"].value(), form["rate"].value()) == (3, "10/m")
    call_command("jobs", "limit", "mail", "--clear")
    assert "@mail" not in limits.read()


def test_a_pattern_is_no_task(staff):
    """No claim would heed it."""
    with pytest.raises(CommandError, match="several tasks"):
        call_command("jobs", "limit", "--task", "tests.*", "--concurrency", "1")
    client = staff("view_limit", "set_limit")
    text = client.post(SET, {**MAIL, "kind": "task", "name": "tests.*"}).content.decode()
    assert "several tasks" in text
    assert limits.read() == {}


def test_a_limit_that_is_set_on_the_page_holds_within_a_poll(staff):
    for _ in range(3):
        tasks.noop.apply_async((), queue="mail")
    client = staff("view_limit", "set_limit")
    assert "Set: @mail." in client.post(SET, MAIL, follow=True).content.decode()
    clock.tick()
    assert len(claim(queue="mail")) == 1
    [entry] = LogEntry.objects.all()
    assert (entry.object_repr, entry.change_message) == ("@mail", "set concurrency=1, they asked")
    assert row(client, "mail")[1:5] == ["1", "-", "1", "2"]
    told = client.post(REMOVE, {"name": "@mail", "why": "they paid"}, follow=True).content.decode()
    assert "Removed: @mail" in told
    assert LogEntry.objects.latest("pk").change_message == "remove they paid"
    clock.tick()
    assert len(claim(queue="mail")) == 2
    assert "Nothing was changed." in client.post(REMOVE, {"name": "@mail"}, follow=True).content.decode()
    end()


def test_what_was_taken_away_by_hand_can_be_brought_back(staff):
    client = staff("view_limit", "set_limit")
    client.post(SET, {"kind": "task", "name": "five_a_second", "rate": "0"})
    assert Limit.objects.get().rate == "0"
    assert row(client, "tests.contrib.limits.tasks.five_a_second")[1:3] == ["-", "-"]
    client.post(REMOVE, {"name": "tests.contrib.limits.tasks.five_a_second"})
    assert row(client, "tests.contrib.limits.tasks.five_a_second")[2] == "5/s"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"concurrency": "0"}, "greater than or equal to 1"),
        ({"concurrency": "", "rate": "soon"}, "A rate is a number and its time"),
        ({"concurrency": ""}, "Say how many at once"),
        ({"kind": "task", "name": "no.such"}, "there is no task"),
        ({"name": ""}, "This field is required"),
        ({"name": "\0"}, "Null characters are not allowed"),
    ],
)
def test_what_is_wrong_is_said_at_the_form(staff, wrong, says):
    response = staff("view_limit", "set_limit").post(SET, {**MAIL, **wrong})
    assert response.status_code == 200
    assert says in response.content.decode()
    assert not Limit.objects.exists()


@pytest.mark.parametrize("codenames", [["view_limit", "view_job"], ["set_limit"], ["view_job", "pause_queue"]])
def test_who_may_not_cannot(staff, codenames):
    limits.set_by_hand("@mail", 1, None)
    client = staff(*codenames)
    for url in (SET, REMOVE):
        assert client.post(url, {**MAIL, "name": "@mail"}).status_code == 403
    assert Limit.objects.get().concurrency == 1
    assert not LogEntry.objects.exists()
    assert client.get(URL).status_code == (200 if "view_limit" in codenames else 403)


def test_a_form_of_another_site_sets_nothing(staff):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = staff("view_limit", "set_limit").cookies
    assert strict.post(SET, MAIL).status_code == 403
    assert strict.get(SET).status_code == 405
    assert not Limit.objects.exists()


def test_what_waits_is_counted_up_to_a_bound(monkeypatch):
    bodies.two_at_once.delay_many([(n,) for n in range(6)])
    bodies.one_of_a_customer.delay("a", "1")
    assert usage.waiting()("tests.contrib.limits.tasks.two_at_once") == "6"
    monkeypatch.setattr(usage, "MOST", 4)
    assert usage.waiting()("tests.contrib.limits.tasks.two_at_once") == "4+"
    assert Job.objects.count() == 7
