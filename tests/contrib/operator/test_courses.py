"""The page of a task and that of a queue: what became of their jobs, over a time, and how long they took."""

from __future__ import annotations

import datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.operator.figures import Course
from jobs.contrib.operator.statistics import HOUR, MINUTE, bucket
from tests.contrib.operator.tallies import tally
from tests.helpers.rows import ended, make, make_node

pytestmark = pytest.mark.django_db(transaction=True)

TASK, QUEUE = reverse("admin:jobs_task"), reverse("admin:jobs_queue")
EVIL = "<script>alert(1)</script>"


def test_what_a_task_did_is_that_of_no_other():
    tally(5 * MINUTE, 90, ran={str(bucket(0.1)): 90})
    tally(5 * MINUTE, 10, state="failed", error="PaymentError", ran={str(bucket(20.0)): 10})
    tally(3 * MINUTE, 30, ran={str(bucket(0.4)): 30})
    tally(5 * MINUTE, 1000, task="shop.other")
    course = Course("hour", task="shop.mail")
    assert {state: sum(counts) for state, counts in course.chart().series.items()} == {"succeeded": 120, "failed": 10}
    median, p95 = ([each for each in course.times("ran", part) if each is not None] for part in (0.5, 0.95))
    assert median == pytest.approx([0.1, 0.4], rel=0.2)
    assert p95 == pytest.approx([20.0, 0.4], rel=0.2)


def test_what_is_not_counted_yet_is_in_it():
    ended(timezone.now(), ran=2.0, task="shop.mail")
    [ran] = [each for each in Course("day", task="shop.mail").times("ran", 0.5) if each]
    assert ran == pytest.approx(2.0, rel=0.2)


def test_how_many_waited_in_a_queue_follows_from_how_many_and_how_long():
    """60 a minute, each of which waited for 10 s: ten at a time."""
    tally(5 * MINUTE, 60, waited={str(bucket(10.0)): 60})
    course = Course("hour", queue="mail")
    assert max(course.waiting()) == pytest.approx(10.0, rel=0.2)
    assert sum(each > 0 for each in course.waiting()) == 1


def test_a_wait_counts_while_it_lasted_and_not_when_it_ended():
    """Ten that a new worker took after half an hour: the bar of their end had 300, and those before it none."""
    tally(5 * MINUTE, 10, waited={str(bucket(1800.0)): 10})
    waiting = Course("hour", queue="mail").waiting()
    assert waiting[-8:-4] == pytest.approx([10.0, 10.0, 10.0, 0.0])
    assert max(waiting) <= 10.0
    assert sum(waiting) == pytest.approx(300.0, rel=0.2)


def test_those_that_wait_still_are_among_them():
    """A queue without a worker has none that ended: its page said nothing of how many waited."""
    for minutes in (400, 20, 20, 3):
        make("ready", age=60.0 * minutes, queue="mail")
    make("ready", age=600.0, queue="mail", held=True)
    make("ready", age=600.0, queue="other")
    waiting = Course("hour", queue="mail").waiting()
    assert [waiting[-1 - ago] for ago in (59, 30, 15, 5, 0)] == [1, 1, 3, 4, 5]


def test_marks_of_deploys():
    now = timezone.now()
    for version, ages in (("v1", (600, 5)), ("v2", (20, 10)), ("", (3,))):
        for age in ages:
            make_node(version=version, started_at=now - age * MINUTE, dead_at=now if age == 20 else None)
    [(at, version)] = Course("hour", task="x").deploys()
    assert (version, now - at) == ("v2", datetime.timedelta(minutes=20)), "v1 was there before"


def test_the_page_of_a_task(staff):
    tally(5 * MINUTE, 90, ran={str(bucket(0.1)): 90}, waited={str(bucket(3.0)): 90})
    tally(7 * MINUTE, 10, state="failed", error="PaymentError")
    make_node(version="v2", started_at=timezone.now() - 20 * MINUTE)
    client = staff("view_job")
    with CaptureQueriesContext(connection) as queries:
        text = client.get(TASK, {"name": "shop.mail"}).content.decode()
    assert len(queries) <= 10
    for words in ("The task shop.mail", "ran, 95 %", "succeeded: 90", "failed: 10", "version v2 since"):
        assert words in text
    jobs = reverse("admin:jobs_job_changelist")
    assert f'href="{jobs}?state__exact=failed&amp;task=shop.mail&amp;error=PaymentError"' in text
    assert text.count('<polyline class="course-0"') >= 2
    for span in ("day", "week", "none"):
        assert client.get(TASK, {"name": "shop.mail", "span": span}).status_code == 200


def test_the_page_of_a_queue_says_what_is_in_it_now(staff):
    make("ready", queue="mail")
    tally(5 * HOUR, 90, length=3600, waited={str(bucket(3.0)): 90})
    text = staff("view_job").get(QUEUE, {"name": "mail", "span": "day"}).content.decode()
    for words in ("The queue mail", "<strong>1</strong> ready", "how many waited, on average", "waited, median"):
        assert words in text
    assert "ran, median" not in text


def test_the_page_of_a_queue_that_nobody_takes(staff):
    """It said that no job ended, and nothing of those that wait."""
    make("ready", age=2100.0, queue="reports")
    make_node(queues=["mail"])
    text = staff("view_job").get(QUEUE, {"name": "reports"}).content.decode()
    for words in ("<strong>35 min</strong> Oldest ready", "<strong>0</strong> Workers", "ow many waited"):
        assert words in text
    assert text.count('<polyline class="course-0"') == 1


def test_who_may_look_and_what_is_none(staff, client):
    assert client.get(TASK, {"name": "x"}).status_code == 302
    viewer = staff("view_job")
    assert viewer.get(TASK).status_code == viewer.get(QUEUE, {"name": "a\0"}).status_code == 404
    text = viewer.get(QUEUE, {"name": EVIL}).content.decode()
    assert "No job ended in that time." in text
    assert EVIL not in text


def test_the_dashboard_leads_to_them(staff):
    tally(2 * MINUTE, 5)
    text = staff("view_job").get(reverse("admin:jobs_dashboard")).content.decode()
    assert f'href="{TASK}?name=shop.mail"' in text
    assert f'href="{QUEUE}?name=mail"' in text
