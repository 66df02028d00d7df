"""The list of jobs with its filters, words and counts, the life of a job as a drawing, and the list of nodes."""

from __future__ import annotations

import datetime
import html
import re
import uuid
from urllib.parse import parse_qsl

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job, Marker, Node
from tests.helpers.admin_list import ERROR, LIST, ids, links, listed, page, short
from tests.helpers.rows import let_heartbeat, make

pytestmark = pytest.mark.django_db


def test_empty_list_says_so(viewer):
    assert listed(viewer) == []
    assert "No jobs yet." in viewer.get(LIST).content.decode()
    assert "No jobs fit." in viewer.get(LIST, {"queue": "mail"}).content.decode()


def test_filters_in_words(viewer):
    node = Node.objects.create(hostname="web7", pid=1)
    smtp = {**ERROR, "type": "SMTPConnectError"}
    job = make(
        "failed", task="shop.mail", queue="mail", node=node, error=smtp, marker_key="welcome:1", args=["ada@é.org"]
    )
    new = make("scheduled", unique_key="nightly", created_at=timezone.now() + datetime.timedelta(hours=1))
    asked = {"task": "shop.*", "queue": "mail", "node": "web7", "error": "SMTPConnectError", "key": "welcome:1"}
    asked |= {"contains": "ada@é", "since": "1h", "until": str(timezone.now())}
    for name, value in asked.items():
        expected = [new, job] if name == "since" else [job]
        assert listed(viewer, **{name: value}) == short(*expected), name
    assert listed(viewer, **asked) == short(job)
    assert listed(viewer, node=node.pk) == listed(viewer, node=str(node.pk)[:8]) == short(job)
    assert listed(viewer, key="nightly") == short(new)
    assert listed(viewer, contains="welcome:1") == []
    text = viewer.get(LIST, {**asked, "state__exact": "failed"}).content.decode()
    assert '<input type="hidden" name="state__exact" value="failed">' in text
    assert 'name="queue" value="mail"' in text


def test_a_page_looks_at_so_many_jobs_and_the_next_one_goes_on(viewer, monkeypatch):
    monkeypatch.setattr("jobs.contrib.pages.base.LOOKED_AT", 10)
    rare = [make(task="shop.rare", age=age) for age in (1000, 999, 500)]
    for number in range(25):
        make("succeeded" if number % 2 else "failed", age=100 + number)
    query, found, ways = {"task": "shop.rare"}, [], []
    while query:
        response = viewer.get(LIST, query)
        found.append(ids(response))
        assert ("No index has these filters" in response.content.decode()) == bool(len(found) < 3)
        pages = response.context["cl"].pages
        ways.append(sorted(pages))
        query = dict(parse_qsl(pages.get("next_page", "").removeprefix("?")))
    assert found == [[], [], [job.pk for job in reversed(rare)]]
    assert ways == [
        ["last_page", "next_page"],
        ["first_page", "last_page", "next_page"],
        ["first_page", "previous_page"],
    ]
    back = viewer.get(LIST, dict(parse_qsl(pages["previous_page"].removeprefix("?"))))
    assert ids(back) == []
    assert sorted(back.context["cl"].pages) == ["first_page", "previous_page"]
    assert listed(viewer, task="shop.rare", p="last") == short(*reversed(rare))
    assert len(listed(viewer, state__exact="succeeded")) == 12
    assert listed(viewer, task="shop.rare", until="600s") == short(*reversed(rare[:2])), "it begins there"


def foreign(age: float, digit: str, **more) -> Job:
    """A member of a chain: its id is Celery's, and says no time."""
    at = timezone.now() - datetime.timedelta(seconds=age)
    return make(id=uuid.UUID(digit * 8 + str(uuid.uuid4())[8:]), age=age, made_at=at, **more)


def test_the_list_is_by_time_whatever_the_ids(viewer, monkeypatch):
    # A minute apart: to make them takes a while.
    jobs = {age: make(age=60 * age) for age in range(0, 80, 2)}
    jobs |= {age: foreign(60 * age, "f" if age % 3 else "0") for age in range(1, 80, 6)}
    expected = [jobs[age].pk for age in sorted(jobs)]
    monkeypatch.setattr("jobs.contrib.operator.pages.jobs.ManyJobsAdmin.list_per_page", 7)
    for order, wanted in (("", expected), ("oldest", expected[::-1])):
        query, pages, backs = {"o": order}, [], []
        while query:
            pages.append(ids(response := viewer.get(LIST, query)))
            query = dict(parse_qsl(response.context["cl"].pages.get("next_page", "").removeprefix("?")))
        assert [key for page in pages for key in page] == wanted
        query = {"o": order, "p": "last"}
        while query:
            backs.append(ids(response := viewer.get(LIST, query)))
            query = dict(parse_qsl(response.context["cl"].pages.get("previous_page", "").removeprefix("?")))
        assert [key for page in reversed(backs[:-1]) for key in page] == wanted[-7 * (len(backs) - 1) :]
        assert backs[-1] == wanted[:7]


def test_a_search_without_an_index_goes_on_by_time(viewer, monkeypatch):
    monkeypatch.setattr("jobs.contrib.pages.base.LOOKED_AT", 10)
    rare = []
    for age in range(60):
        name = "shop.rare" if age in (3, 25, 26, 58) else "shop.often"
        job = foreign(age, "f", task=name) if age % 5 == 0 else make(age=age, task=name)
        rare += [job.pk] if name == "shop.rare" else []
    query, found = {"task": "shop.rare"}, []
    while query:
        found.append(ids(response := viewer.get(LIST, query)))
        query = dict(parse_qsl(response.context["cl"].pages.get("next_page", "").removeprefix("?")))
    assert [key for page in found for key in page] == rare
    assert len(found) > 3


def test_a_filter_that_says_nothing_says_what_it_should_be(viewer):
    make()
    response = viewer.get(LIST, {"since": "soon"})
    assert next(str(each) for each in response.context["messages"]).startswith("Created since: ")
    assert ids(response) == []
    assert viewer.get(LIST, {"queue": "\0"}).status_code == 400


def test_orders_and_pages_keep_every_filter(viewer):
    parent = make()
    for _ in range(60):
        make(parent_id=parent.pk)
    first = viewer.get(LIST, {"parent": str(parent.pk)})
    second = viewer.get(LIST + links(first)["Next page"])
    urls = [links(second)["First page"], links(second)["Previous page"]]
    urls += re.findall(r'<a href="([^"]*)"[^>]*>(?:newest|oldest|ended last)</a>', second.content.decode())
    assert len(urls) == 5
    assert all(f"parent={parent.pk}" in url for url in urls), urls


def test_nobody_searches_arguments_that_nobody_may_see(viewer, settings):
    make(args=["secret"])
    assert len(listed(viewer, contains="secret")) == 1
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redactions.hide_secrets"}
    assert 'name="contains"' not in viewer.get(LIST).content.decode()
    assert viewer.get(LIST, {"contains": "secret"}).status_code == 302


def test_filter_by_date(viewer):
    week, day, hour = (make(age=age) for age in (3 * 86400, 7200, 60))
    # The id of a job that another program called says no time.
    other = make(id=uuid.UUID(int=4 << 76 | 2 << 62), made_at=timezone.now() - datetime.timedelta(hours=3))
    make(age=9 * 86400)
    assert listed(viewer, created="1h") == short(hour)
    assert listed(viewer, created="1d") == short(hour, day, other)
    assert listed(viewer, created="1w") == short(hour, day, other, week)
    assert listed(viewer, until="150min") == [each for each in listed(viewer) if each not in short(hour, day)]
    assert len(listed(viewer, created="soon")) == 5


def test_states_and_queues_are_counted(viewer):
    make("failed")
    for _ in range(2):
        make("ready", queue="mail")
    text = viewer.get(LIST).content.decode()
    for words in ("failed (1)", "ready (2)", "mail (2)"):
        assert words in text


def test_of_the_failed_and_cancelled_the_newest_are_counted(viewer, monkeypatch):
    monkeypatch.setattr("jobs.contrib.operator.pages.jobs.SEEN", 3)
    for state in ("failed", "failed", "cancelled", "failed"):
        make(state)
    assert "failed (2+)" in viewer.get(LIST).content.decode()


def test_the_life_of_a_job_is_drawn(viewer):
    at = timezone.now()

    def ago(seconds):
        return at - datetime.timedelta(seconds=seconds)

    errors = [{**ERROR, "at": ago(30).isoformat()}, {**ERROR, "at": "nonsense"}, "text"]
    values = {"created_at": ago(100), "run_at": ago(90), "started_at": ago(60), "finished_at": ago(40), "lease": 1}
    text = viewer.get(page(make("failed", errors=errors, **values))).content.decode()
    assert 'aria-label="waited for its time: 10 s, waited for a worker: 30 s, ran: 20 s"' in text
    assert text.count("<line ") == 1
    assert "<title>ValueError: the message</title>" in text
    again = make("scheduled", created_at=ago(100), run_at=at + datetime.timedelta(hours=1), started_at=ago(60), lease=2)
    assert "earlier attempts: 40 s, waits for its time" in viewer.get(page(again)).content.decode()


def test_nodes_are_listed_with_what_each_does(viewer):
    now = timezone.now()
    dead = Node.objects.create(hostname="dead1", pid=2, dead_at=now, tasks=["tests.tasks.effect"])
    names = {"alive": {}, "stopping": {"stopping_at": now}, "quiet": {"queues": []}, "silent": {}}
    names["stopped"] = {"dead_at": now, "signed_off": True}
    nodes = {
        name: Node.objects.create(**{"hostname": name, "pid": 1, "queues": ["celery", "mail"], **more})
        for name, more in names.items()
    }
    for name, node in nodes.items():
        if name != "silent":
            let_heartbeat(node)
    job = make("running", node=nodes["alive"])
    found = viewer.get(reverse("admin:jobs_node_changelist")).content.decode()
    for name in (*nodes, "died"):
        assert re.search(f'<td class="field-status"><span class="job-state job-[a-z]*">{name}</span></td>', found), name
    assert '<td class="field-served">celery, mail</td>' in found
    assert f'<a href="{LIST}?state__exact=running&amp;node={nodes["alive"].pk}">1 effect</a>' in found
    assert listed(viewer, state__exact="running", node=nodes["alive"].pk) == short(job)
    text = viewer.get(reverse("admin:jobs_node_change", args=[dead.pk])).content.decode()
    assert "tests.tasks.effect" in text
    assert "_save" not in text


def test_what_belongs_to_a_job(viewer, admin_client):
    job = make("succeeded", marker_key="welcome:1", unique_key="nightly")
    child = make(parent_id=job.pk, options={"group_index": 2})
    marker = Marker.objects.create(key="welcome:1", kind="task", job=job.pk)
    text = html.unescape(admin_client.get(page(job)).content.decode()).partition("What belongs to it")[2]
    for row, name in ((child, "job"), (marker, "marker")):
        assert f'href="{reverse(f"admin:jobs_{name}_change", args=[row.pk])}"' in text
    assert '>part 3</span></th><td><span class="job-state job-ready">ready</span></td>' in text
    for query in ("task=tests.tasks.effect", "queue=celery", "key=nightly", "key=welcome%3A1", f"parent={job.pk}"):
        assert f'href="{LIST}?{query}"' in text
    assert listed(admin_client, parent=job.pk) == short(child)
    # Who may not see markers sees none here.
    text = viewer.get(page(job)).content.decode().partition("What belongs to it")[2]
    assert reverse("admin:jobs_marker_change", args=[marker.pk]) not in text


def test_nothing_that_a_node_says_becomes_markup(viewer):
    node = Node.objects.create(hostname="<script>alert(1)</script>", pid=1)
    for url in (reverse("admin:jobs_node_change", args=[node.pk]), reverse("admin:jobs_node_changelist")):
        text = viewer.get(url).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_staff_without_permission_sees_no_node(staff):
    assert staff("view_job").get(reverse("admin:jobs_node_changelist")).status_code == 403


def test_a_search_ends_where_its_matches_end(viewer, monkeypatch):
    """The page after them led back to the first one."""
    monkeypatch.setattr("jobs.contrib.pages.base.LOOKED_AT", 10)
    some = [make(queue="mail", age=number).pk for number in range(8)]
    for number in range(20):
        make(age=100 + number)
    monkeypatch.setattr("jobs.contrib.operator.pages.jobs.ManyJobsAdmin.list_per_page", 5)
    query, found = {"queue": "mail"}, []
    while query and len(found) < 10:
        response = viewer.get(LIST, query)
        found += ids(response)
        query = dict(parse_qsl(response.context["cl"].pages.get("next_page", "").removeprefix("?")))
    assert found == some


@pytest.mark.parametrize("term", ["task:shop.rare", "queue:rare", "error:Rare", "node:web7", "shop.rare", "rare"])
def test_a_search_that_no_index_answers_looks_at_so_many_jobs_a_page(viewer, monkeypatch, term):
    monkeypatch.setattr("jobs.contrib.pages.base.LOOKED_AT", 10)
    monkeypatch.setattr("jobs.contrib.operator.pages.jobs.ManyJobsAdmin.known_tasks", lambda self: {"shop.rare"})
    node = Node.objects.create(hostname="web7", pid=1)
    rare = make("failed", age=900, task="shop.rare", queue="rare", node=node, error={**ERROR, "type": "Rare"})
    for number in range(25):
        make(age=number)
    query, found = {"q": term}, []
    while query:
        found.append(ids(response := viewer.get(LIST, query)))
        assert ("No index has these filters" in response.content.decode()) == (len(found) < 3)
        query = dict(parse_qsl(response.context["cl"].pages.get("next_page", "").removeprefix("?")))
    assert found == [[], [], [rare.pk]]
    assert listed(viewer, q=term, node="web8") == []
