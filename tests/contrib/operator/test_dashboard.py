"""The dashboard: what it shows, out of small tables, and the buttons that it has."""

from __future__ import annotations

import datetime
import re
import uuid

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.inspection import counts
from jobs.contrib.operator import problems, statistics, status
from jobs.contrib.operator.figures import FAILURES, TASKS, Dashboard
from jobs.contrib.operator.statistics import HOUR, MINUTE, Count
from jobs.contrib.pauses import pauses
from jobs.models import Job, Schedule
from tests.contrib.operator.tallies import tally
from tests.helpers.rows import ended, let_heartbeat, make, make_node

pytestmark = pytest.mark.django_db(transaction=True)

URL = reverse("admin:jobs_dashboard")
EVIL = "<script>alert(1)</script>"


def test_a_new_project_is_told_what_to_do_next(staff):
    client = staff("view_job")
    text = client.get(URL).content.decode()
    for words in (
        "No worker is alive. Start one: <code>celery -A shop worker</code>",
        "Call a task with delay()",
        "No job ended",
    ):
        assert words in text
    index = client.get(reverse("admin:index")).content.decode()
    assert re.search(rf'href="{URL}"[^>]*>\s*Dashboard', index)


def test_what_is_there_now(staff):
    node = make_node(version="9.9", pool="prefork", concurrency=7)
    let_heartbeat(node)
    make("running", node=node)
    make("ready", age=600)
    make("ready", queue="mail")
    pauses.pause("mail")
    text = staff("view_job").get(URL).content.decode()
    for words in (
        "<strong>2</strong> ready",
        "9.9",
        "prefork 7",
        "celery, mail",
        "10 min",
    ):
        assert words in text, words
    assert "paused" in text
    assert "<button" not in text.partition("jobs-queues")[2].partition("jobs-nodes")[0], "may only look"


def test_a_job_that_ended_is_in_the_picture():
    for minutes in (3, 4):
        ended(timezone.now() - minutes * MINUTE, ran=0.1, waited=5)
    ended(timezone.now() - 3 * MINUTE, state="failed")
    Count().run_once()
    board = Dashboard("hour", "state")
    assert board.ended() == {"succeeded": 2, "failed": 1, "cancelled": 0}
    assert {name: sum(values) for name, values in board.chart().series.items()} == {"succeeded": 2, "failed": 1}
    assert board.chart().highest == 2 or board.chart().highest == 1
    all_of_them = board.durations()[0]
    assert (all_of_them["task"], all_of_them["count"]) == ("", 3)
    assert all_of_them["waited"]["median"] == pytest.approx(5, rel=0.2)
    [failure] = board.failures()
    assert (failure["task"], failure["error"], failure["count"]) == ("tests.tasks.effect", "ValueError", 1)
    assert Dashboard("day").ended() == Dashboard("week").ended() == board.ended()


def test_spans_and_groups(staff):
    tally(2 * MINUTE, 5)
    tally(70 * MINUTE, 7)
    tally(2 * HOUR, 11, length=3600)
    tally(2 * HOUR, 11, length=21600)
    tally(30 * HOUR, 13, length=21600, task="shop.pay")
    client = staff("view_job")
    assert "shop.mail: 5<" in client.get(f"{URL}?by=task").content.decode()
    assert "shop.mail: 11<" in client.get(f"{URL}?by=task&span=day").content.decode()
    text = client.get(f"{URL}?by=task&span=week").content.decode()
    assert "shop.pay: 13<" in text
    assert "mail: 24<" in client.get(f"{URL}?by=queue&span=week").content.decode()
    assert client.get(f"{URL}?by=nothing&span=century").status_code == 200


def test_more_tasks_than_colours_are_shown_as_others(staff):
    for number in range(12):
        tally(2 * MINUTE, 20 - number, task=f"task{number}")
    chart = Dashboard("hour", "task").chart()
    assert list(chart.series) == [*(f"task{number}" for number in range(7)), ""]
    assert sum(chart.series[""]) == sum(20 - number for number in range(7, 12))
    assert "others: " in staff("view_job").get(f"{URL}?by=task").content.decode()


def test_of_many_kinds_of_failures_the_most_frequent_are_shown(staff):
    for number in range(FAILURES + 3):
        tally(2 * MINUTE, 1 + number, state="failed", error=f"Error{number:03}")
    text = staff("view_job").get(URL).content.decode()
    assert [f"Error{number:03}" in text for number in (0, 2, 3, FAILURES + 2)] == [False, False, True, True]
    assert "3 rarer kinds of failures" in text


def test_rates_and_when_a_queue_is_drained():
    for _ in range(3):
        make("ready", queue="mail", age=3600)
    tally(2 * MINUTE, 60)
    tally(2 * MINUTE, 30, state="cancelled", ran={})
    [queue] = Dashboard().queues()
    assert (queue["in"], queue["out"], queue["drained"]) == (0, 6.0, None), "nobody works on it"
    node = make_node(queues=["mail", "idle"])
    let_heartbeat(node)
    idle, queue = Dashboard().queues()
    assert queue["drained"] == pytest.approx(30.0)
    assert (idle["name"], idle["workers"], idle["ready"]) == ("idle", 1, 0)
    make("ready", queue="mail")
    assert Dashboard().queues()[1]["in"] == 0.1
    # Its id does not say when it was made.
    Job.objects.create(pk=uuid.uuid4(), task="t", queue="mail", made_at=timezone.now())
    assert Dashboard().queues()[1]["in"] == 0.2


def test_of_very_many_calls_the_newest_tell_the_rate(monkeypatch):
    monkeypatch.setattr(counts, "MOST", 60)
    for number in range(100):
        make("succeeded", age=60 + number, queue="mail")
    make("ready", age=3600, queue="mail")
    [queue] = Dashboard().queues()
    assert 28 < queue["in"] < 31, "60 in the last 119 seconds, and not 60 in ten minutes"


def test_a_failure_is_there_at_once(staff):
    client = staff("view_job")
    make("failed", task="shop.mail")
    # Counted meanwhile, and once.
    make("failed", task="shop.mail", age=180)
    Count().run_once()
    for span in ("hour", "day", "week"):
        assert Dashboard(span).ended()["failed"] == 2
        assert sum(Dashboard(span).chart().series["failed"]) == 2
        assert "shop.mail: 2 of 2 failed this hour" in client.get(f"{URL}?span={span}").content.decode()
    [remark] = [each for each in problems.of(status.gather(live=True)) if each.kind == "failed"]
    assert remark.number == 2


def test_of_very_many_that_nobody_counted_yet_the_newest_tell(monkeypatch):
    monkeypatch.setattr(statistics, "MOST", 3)
    for number in range(5):
        make("failed", age=number)
    assert Dashboard().ended()["failed"] == 3


def test_of_many_tasks_the_database_adds_up_the_counts(monkeypatch):
    for number in range(120):
        tally((2 + number % 2) * MINUTE, 5, task=f"task{number:03}")
    for number in range(30):
        tally((2 + number // 3) * MINUTE, 4, task=f"task{number % 3:03}", state="failed", error="E")
    read, found = [], statistics._read
    monkeypatch.setattr(statistics, "_read", lambda *given: (read.append(row) or row for row in found(*given)))
    board = Dashboard("hour", "task")
    # Its problems read some.
    read.clear()
    assert sum(map(sum, board.chart().series.values())) == sum(board.ended().values()) == 720
    durations = board.durations()
    assert len(durations) == 1 + TASKS
    assert [(each["task"], each["count"]) for each in board.failures()] == [(f"task{n:03}", 40) for n in range(3)]
    assert {row[0] for row in read} == {each["task"] for each in durations} - {""}
    assert len(read) < 2 * TASKS, "rows with what each of the shown tasks took"


def test_it_takes_few_queries_however_much_there_is(staff):
    client = staff("view_job")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"{URL}?span=week&by=task").status_code == 200
        return len(captured)

    make("ready")
    make("running")
    tally(2 * MINUTE, 1, state="failed", error="E")
    # The first one may make the file of the beats.
    queries()
    few = queries()
    for number in range(10):
        make("ready", queue=f"queue{number}")
        make("running")
        tally(2 * MINUTE, 1, task=f"task{number}", state="failed", error="E")
    # PostgreSQL is asked for its heartbeats and its identity, too.
    assert queries() == few <= 33 + 3 * (connection.vendor == "postgresql")


def test_a_spike_is_cut_and_said():
    for ago in range(2, 50):
        tally(ago * MINUTE, 10)
    tally(51 * MINUTE, 5000)
    chart = Dashboard().chart()
    assert (chart.highest, [*chart.cut.values()]) == (5000, [5000])
    assert chart.top < 20


def test_numbers_above_the_chart_do_not_overlap(staff):
    for ago in range(2, 50):
        tally(ago * MINUTE, 10)
    for ago, count in ((51, 5000), (52, 7000), (20, 6000)):
        tally(ago * MINUTE, count, task="shop.spike")
    text = staff("view_job").get(URL).content.decode()
    assert (text.count(">▲</text>"), text.count(">7000</text>"), text.count(">6010</text>")) == (3, 1, 1)
    assert ">5000</text>" not in text, "beside a higher one"


def test_its_place_has_no_page_of_a_row(admin_client):
    job = make(kwargs={"password": "s3cret"})
    for end in ("change/", "history/", "delete/"):
        response = admin_client.get(f"{reverse('admin:jobs_dashboard')}{job.pk}/{end}")
        assert response.status_code == 404
    assert reverse("admin:jobs_overview_changelist") == reverse("admin:jobs_dashboard")


def test_nothing_becomes_markup(staff):
    make("ready", queue=EVIL)
    make("running", node=make_node(hostname=EVIL, queues=[EVIL]))
    tally(2 * MINUTE, 1, task=EVIL, queue=EVIL, state="failed", error=EVIL)
    client = staff("view_job", "pause_queue")
    for by in ("state", "task", "queue"):
        text = client.get(f"{URL}?by={by}").content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_the_promise_is_verified_on_a_page_of_its_own(staff):
    client = staff("view_job")
    url = reverse("admin:jobs_verify")
    assert f'href="{url}"' in client.get(URL).content.decode()
    assert "0 violations." in client.get(url).content.decode()
    job = make("running", age=3600)
    Job.objects.update(node_id=uuid.uuid4())
    # A worker that could give it back.
    let_heartbeat(make_node(started_at=timezone.now() - datetime.timedelta(hours=1), concurrency=1))
    text = client.get(url).content.decode()
    assert '<span class="job-state job-failed">1</span>' in text
    assert f'<a href="{reverse("admin:jobs_job_change", args=[job.pk])}">{job.pk}</a>' in text
    # A node is not a job.
    assert reverse("admin:jobs_job_change", args=[job.node_id]) not in text
    client.logout()
    assert client.get(url).status_code == 302


def test_a_queue_has_a_button_to_pause_and_to_resume_it(staff):
    client = staff("view_job", "pause_queue")
    make("ready", queue="mail")
    assert "Pause mail" in client.get(URL).content.decode()
    switch = {"queue": "mail", "verb": "pause"}
    assert "Resume mail" in client.post(reverse("admin:jobs_queue_switch"), switch, follow=True).content.decode()


def test_who_may_not_look_sees_nothing(staff):
    client = staff("pause_queue")
    assert client.get(URL).status_code == 403
    assert "Dashboard" not in client.get(reverse("admin:index")).content.decode()


def test_who_may_not_see_the_schedule_sees_none_of_its_troubles(staff):
    """The job of a tick may not be made because of what it is called with."""
    now = timezone.now()
    values = {"task": "shop.nightly", "timing": "daily", "defined_at": now, "last_tick": now, "definition": "x"}
    ahead = now + datetime.timedelta(hours=1)
    Schedule.objects.create(name="nightly-report", error="no account 4711", next_tick=ahead, **values)
    for names, is_there in ((["view_job"], False), (["view_job", "view_schedule"], True)):
        User.objects.all().delete()
        text = staff(*names).get(URL).content.decode()
        for words in ("nightly-report", "no account 4711", "1 schedule makes no job"):
            assert (words in text) is is_there, (names, words)


def test_of_very_many_queues_those_with_jobs_are_shown(staff, monkeypatch):
    monkeypatch.setattr("jobs.contrib.operator.pages.dashboard.QUEUES", 3)
    for number in range(5):
        ended(timezone.now() - MINUTE, queue=f"a{number}")
    make("ready", queue="z")
    text = staff("view_job").get(URL).content.decode()
    shown = re.findall(r"queue/\?name=(\w+)", text[text.index('id="jobs-queues"') :])
    assert shown == ["z", "a0", "a1"]
    assert "3 more queues are not shown." in text
