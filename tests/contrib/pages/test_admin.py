"""The admin: everything can be seen, nothing changed, and no page costs more the longer the history is."""

from __future__ import annotations

import datetime
import html
import re
import uuid

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.locks import locks
from jobs.contrib.locks.locks import lock
from jobs.models import Job, Node, State
from jobs.models.values import DEPTH, as_uuid
from tests.contrib.locks.tasks import locked
from tests.helpers.admin_list import ERROR, LIST, ids, links, listed, page, short
from tests.helpers.redactions import of_job
from tests.helpers.routers import Replica
from tests.helpers.rows import make
from tests.tasks import noop

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"


# Cost


def statements(client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200
    # MySQL quotes in its own way.
    return [query["sql"].replace("`", '"') for query in queries]


def test_list_takes_the_same_statements_for_5_jobs_and_for_60(viewer):
    for _ in range(5):
        make("running", parent_id=uuid.uuid4())
    few = statements(viewer, LIST)
    for _ in range(55):
        make("failed", errors=[ERROR])
    make("running")
    assert len(listed(viewer)) == 50
    many = statements(viewer, LIST)
    assert len(many) == len(few) <= 14


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?p=last",
        "?p=after,ff1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11",
        "?state__exact=failed",
        "?q=tests.",
        "?all=",
        "?_facets=True",
        "?o=2.-3",
    ],
)
def test_list_neither_counts_nor_sorts_the_table(viewer, query):
    for _ in range(60):
        make("failed")
    every = [sql for sql in statements(viewer, LIST + query) if '"jobs_job"' in sql]
    # What is counted beside it is live, or counted up to a limit.
    counts = [sql for sql in every if "COUNT(" in sql and "'running'" not in sql]
    assert all(re.search(r"LIMIT \d+\) ", sql) for sql in counts), counts
    sent = [sql for sql in every if "LIMIT 51" in sql]
    # Ids that say when they were made, and the others: each by its index.
    assert 1 <= len(sent) <= 2
    way = "ASC" if "last" in query else "DESC"
    assert f'ORDER BY "jobs_job"."id" {way} LIMIT 51' in sent[0]
    assert len(sent) == 1 or f'ORDER BY "jobs_job"."made_at" {way}, "jobs_job"."id" {way} LIMIT 51' in sent[1]
    for sql in sent:
        assert "COUNT(" not in sql
        assert "DISTINCT" not in sql
        assert "traceback" not in sql
        assert '"jobs_job"."options"' not in sql


def test_page_of_a_job_takes_few_statements(viewer):
    root, parent = make(), make("succeeded")
    job = make("running", root=root.pk, parent_id=parent.pk, errors=[ERROR] * 40)
    # What is asked once in a process is known by then.
    viewer.get(page(job))
    assert len(statements(viewer, page(job))) <= 19


# The list


def test_list_shows_each_state_as_text(viewer):
    for state in State.values:
        make(state)
    text = viewer.get(LIST).content.decode()
    for state in State.values:
        assert f'<span class="job-state job-{state}">{state}</span>' in text
    assert "tests.tasks.effect" in text


def test_newest_job_is_first(viewer):
    now = timezone.now()
    jobs = [make(created_at=now - datetime.timedelta(minutes=minutes)) for minutes in (5, 1, 3)]
    assert listed(viewer) == short(jobs[1], jobs[2], jobs[0])


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["one moment", "of the database", "of the caller"])
@pytest.mark.parametrize(("sort", "order"), [("", ["-pk"]), ("ended", ["-finished_at", "-pk"])])
def test_pages_follow_each_other_without_gap_or_repetition(viewer, sort, order, clock):
    now = timezone.now()
    for _ in range(120):
        at = {"one moment": now, "of the database": Now(), "of the caller": timezone.now()}[clock]
        make("succeeded", finished_at=at, queue="mail")
    make("succeeded", queue="other")
    expected = list(Job.objects.filter(queue="mail").order_by(*order).values_list("pk", flat=True))
    first = viewer.get(LIST, {"queue": "mail", **({"o": sort} if sort else {})})
    assert links(first).keys() == {"Next page", "Last page"}
    second = viewer.get(LIST + links(first)["Next page"])
    assert links(second).keys() == {"First page", "Previous page", "Next page", "Last page"}
    third = viewer.get(LIST + links(second)["Next page"])
    assert links(third).keys() == {"First page", "Previous page"}
    assert [*ids(first), *ids(second), *ids(third)] == expected
    assert ids(viewer.get(LIST + links(third)["Previous page"])) == ids(second)
    assert ids(viewer.get(LIST + links(second)["Previous page"])) == ids(first)
    assert ids(viewer.get(LIST + links(second)["First page"])) == ids(first)
    oldest = viewer.get(LIST + links(second)["Last page"])
    assert ids(oldest) == expected[-50:]
    assert links(oldest).keys() == {"First page", "Previous page"}
    assert ids(viewer.get(LIST + links(oldest)["Previous page"])) == expected[20:70]


@pytest.mark.parametrize(("sort", "order"), [("oldest", ["pk"]), ("ended", ["-finished_at", "-pk"])])
def test_other_orders_have_pages_as_well(viewer, sort, order):
    for number in range(60):
        make("succeeded" if number % 2 else "failed")
    make("ready")
    rows = Job.objects.filter(finished_at=None) if sort == "oldest" else Job.objects.none()
    expected = [job.pk for job in Job.objects.exclude(finished_at=None).order_by(*order)] + [job.pk for job in rows]
    first = viewer.get(LIST, {"o": sort})
    assert f'<a href="?o={sort}" aria-current="true">' in first.content.decode()
    second = viewer.get(LIST + links(first)["Next page"])
    assert [*ids(first), *ids(second)] == expected
    assert ids(viewer.get(LIST + links(second)["Previous page"])) == ids(first)
    assert ids(viewer.get(LIST + links(first)["Last page"])) == expected[-50:]


def test_a_page_stays_where_it_is_while_new_jobs_come(viewer):
    for _ in range(60):
        make()
    first = viewer.get(LIST)
    rest = ids(viewer.get(LIST + links(first)["Next page"]))
    for _ in range(20):
        make()
    second = viewer.get(LIST + links(first)["Next page"])
    assert ids(second) == rest
    assert len(ids(viewer.get(LIST + links(second)["Previous page"]))) == 50
    Job.objects.filter(pk__in=rest).delete()
    assert viewer.get(LIST + links(first)["Next page"]).status_code == 200


@pytest.mark.parametrize("way", ["after", "before"])
def test_in_the_order_of_their_ends_a_page_beside_a_job_that_is_gone_is_the_first_one(viewer, way):
    job = make("succeeded")
    assert ids(viewer.get(LIST, {"o": "ended", "p": f"{way},{uuid.uuid4()}"})) == [job.pk]


def test_exactly_one_page_has_no_next(viewer):
    for _ in range(50):
        make()
    assert links(viewer.get(LIST)) == {}


@pytest.mark.parametrize(
    "place",
    ["3", "after", "before,x,y", "after,no", "after,1767225600.5,6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "last,1"],
)
def test_page_that_does_not_exist_leads_back(viewer, place):
    make("succeeded")
    response = viewer.get(LIST, {"p": place, "o": "ended"})
    assert (response.status_code, response.url) == (302, f"{LIST}?e=1")


@pytest.mark.parametrize(
    "query",
    ["kwargs__password__startswith=s", "result__x=1", "args__icontains=s", "options__headers__contains=s",
     "error__message=x", "errors__contains=x", "made_at__year=2026"],
)  # fmt: skip
def test_nobody_finds_out_a_value_by_asking_for_it(viewer, query):
    make(kwargs={"password": "s3cret"})
    assert viewer.get(f"{LIST}?{query}").status_code in (302, 400)


@pytest.mark.parametrize("state", State.values)
def test_filter_by_state(viewer, state):
    jobs = {name: make(name) for name in State.values}
    assert listed(viewer, state__exact=state) == short(jobs[state])


def test_search_by_id(viewer):
    job, _ = make(), make()
    for text in (str(job.pk), job.pk.hex, str(job.pk).upper(), f"  {job.pk} ", *short(job), str(job.pk)[:30]):
        assert listed(viewer, q=text) == short(job)
    assert listed(viewer, q=uuid.uuid4()) == listed(viewer, q=uuid.uuid4().hex[:8]) == []


@pytest.mark.parametrize("spelling", ["order-17", "deadbeef"])
def test_search_by_the_id_that_another_program_gave(viewer, spelling):
    job, _ = make(pk=as_uuid(spelling), made_at=timezone.now()), make()
    assert listed(viewer, q=spelling) == short(job)


def test_search_by_id_reads_the_primary_key(viewer):
    job = make()
    found = [sql for sql in statements(viewer, f"{LIST}?q={job.pk}") if "LIMIT 51" in sql]
    assert found
    assert all('"jobs_job"."id" = ' in sql.partition("WHERE")[2] for sql in found)


def test_search_by_a_task_or_its_function(viewer):
    one = make()
    other = make(task=noop.name)
    assert listed(viewer, q="tests.tasks.eff") == short(one)
    assert listed(viewer, q="tests.tasks.noop") == short(other)
    assert listed(viewer, q="effect") == short(one)
    assert listed(viewer, q="tests.tasks.e%t") == []
    found = [sql for sql in statements(viewer, f"{LIST}?q=tests.tasks.eff") if "LIMIT 51" in sql]
    assert found
    assert "LIKE" not in "".join(found)


def test_search_by_words_of_an_error_or_an_argument_says_how_far_it_looked(viewer):
    charge = make(
        "failed", task="shop.charge_card", error={**ERROR, "type": "PaymentError", "message": "card declined"}
    )
    image = make(task="shop.resize", args=["IMG_00007.jpg"])
    assert listed(viewer, q="charge_card") == listed(viewer, q="card declined") == short(charge)
    assert listed(viewer, q="IMG_00007") == short(image)
    assert "of the newest 10,000 jobs" in viewer.get(LIST, {"q": "card declined"}).content.decode()


def test_scheduled_jobs_are_listed_soonest_first(viewer):
    late, soon = (make("scheduled", run_at=timezone.now() + datetime.timedelta(hours=hours)) for hours in (5, 1))
    assert listed(viewer, state__exact="scheduled") == short(soon, late)


# The page of a job


def test_frames_of_the_project_come_before_the_traceback(viewer):
    theirs, mine = '  File "/v/site-packages/x.py", line 1, in y', '  File "/srv/shop/tasks.py", line 7, in pay'
    text = f"Traceback (most recent call last):\n{theirs}\n    y()\n{mine}\n    z()\nE: no"
    entry = {**ERROR, "traceback": text}
    page_text = html.unescape(viewer.get(page(make("failed", error=entry, errors=[entry]))).content.decode())
    own = page_text.index('aria-label="Where in the project">  File "/srv/shop/tasks.py", line 7, in pay')
    assert own < page_text.index("<details><summary>Traceback</summary>")


def test_the_lock_of_a_job(viewer, monkeypatch):
    holder, waiting = (make(task=locked.name) for _ in range(2))
    assert "<dd>locked:x: free</dd>" in viewer.get(page(waiting)).content.decode()
    with lock("locked:x"):
        assert "<dd>locked:x: held by a process that is no job for " in viewer.get(page(waiting)).content.decode()
    monkeypatch.setattr(locks, "look", lambda key: locks.Held(holder.pk, None))
    assert f'locked:x: held by the job <a href="{page(holder)}">' in viewer.get(page(waiting)).content.decode()
    assert "<dd>locked:x: held by this job</dd>" in viewer.get(page(holder)).content.decode()


def test_a_job_as_a_call(viewer):
    text = viewer.get(page(make(args=["x", 1], kwargs={"note": None}))).content.decode()
    assert "from tests.tasks import effect\neffect.delay(&#x27;x&#x27;, 1, note=None)" in text


def test_a_task_with_another_name_is_called_by_its_own(viewer):
    text = viewer.get(page(make(task="jobs.same", args=[], kwargs={}))).content.decode()
    assert "from jobs.contrib.canvas.same import same\nsame.delay()" in text


@pytest.mark.parametrize("state", State.values)
def test_each_state_has_a_page(viewer, state):
    assert viewer.get(page(make(state))).status_code == 200


def test_result_is_shown_once_the_job_succeeded(viewer):
    assert "the result" in viewer.get(page(make("succeeded", result={"a": "the result"}))).content.decode()


def test_page_survives_a_node_that_was_pruned_and_errors_of_another_shape(viewer):
    gone = uuid.uuid4()
    job = make("failed", node_id=gone, errors=["text", {"at": "2026-99-99"}, {}, None], error={"type": "T"})
    text = viewer.get(page(job)).content.decode()
    assert f"{gone} (no longer known)" in text
    assert "<strong>T</strong>" in text


@pytest.mark.parametrize(
    "odd",
    [
        {"args": 5, "kwargs": "abc"},
        {"errors": "abc"},
        {"errors": [{"at": "0001-01-01T00:00:00"}]},
        {"error": {"type": 5, "message": [1]}},
        {"error": "abc"},
        {"options": 5},
        {"options": {"headers": "abc"}},
    ],
    ids=str,
)
def test_a_row_that_a_person_has_edited_is_shown(viewer, odd):
    job = make("failed", task="tests.tasks.add")
    Job.objects.filter(pk=job.pk).update(**odd)
    for url in (LIST, reverse("admin:jobs_job_change", args=[job.pk])):
        assert viewer.get(url).status_code == 200
    assert str(job.pk) in of_job(job)


def test_a_page_shows_as_much_of_an_error_as_a_browser_can_draw(viewer):
    huge = {**ERROR, "message": "m" * 3_000_000, "traceback": "t" * 3_000_000}
    job = make("failed", error=huge, errors=["e" * 3_000_000, huge])
    assert len(viewer.get(page(job)).content) < 1_000_000


def test_times_are_shown_in_the_time_zone_in_force(viewer):
    job = make(created_at=datetime.datetime(2026, 5, 1, 20, 30, 15, tzinfo=datetime.UTC))
    with timezone.override("Asia/Tokyo"):
        assert "<span>2026-05-02</span> <span>05:30:15</span>" in viewer.get(page(job)).content.decode()
        assert 'title="2026-05-02T05:30:15+09:00"' in viewer.get(LIST).content.decode()


def test_unknown_id_leads_back_to_the_index(viewer):
    for key in (uuid.uuid4(), "no-uuid"):
        assert viewer.get(reverse("admin:jobs_job_change", args=[key])).status_code == 302


# Safety


def test_nothing_that_a_job_says_becomes_markup(viewer):
    entry = {"type": EVIL, "message": EVIL, "traceback": EVIL, "at": EVIL, "attempt": EVIL}
    parent = make(task=EVIL)
    job = make(
        "failed", task=EVIL, queue=EVIL, args=[EVIL], kwargs={EVIL: EVIL}, options={"x": EVIL},
        error=entry, errors=[entry, {**entry, "attempt": 2}], parent_id=parent.pk,
        node=Node.objects.create(hostname=EVIL, pid=1),
    )  # fmt: skip
    done = make("succeeded", result=EVIL)
    for url in (LIST, page(job), page(done), f"{LIST}?q={EVIL}"):
        text = viewer.get(url).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_an_action_of_the_whole_site_breaks_no_list(admin_client):
    site.add_action(lambda *args: None, "of_everybody")
    try:
        assert admin_client.get(LIST).status_code == 200
    finally:
        site.disable_action("of_everybody")
        site._global_actions.pop("of_everybody")


def test_staff_without_permission_sees_nothing(client):
    client.force_login(User.objects.create_user("staff", is_staff=True))
    job = make("running")
    for url in (LIST, page(job)):
        assert client.get(url).status_code == 403


def test_anonymous_is_sent_to_the_login(client):
    assert client.get(LIST).status_code == 302


def test_nobody_can_change_anything(viewer, admin_client):
    job = make("failed")
    before = Job.objects.values().get()
    for client in (viewer, admin_client):
        assert client.post(page(job), {"state": "ready", "task": "other", "_save": "1"}).status_code == 403
        assert client.post(reverse("admin:jobs_job_add"), {}).status_code == 403
        assert client.post(reverse("admin:jobs_job_delete", args=[job.pk]), {"post": "yes"}).status_code == 403
        client.post(LIST, {"action": "delete_selected", "_selected_action": str(job.pk), "index": "0", "post": "yes"})
        assert "_save" not in client.get(page(job)).content.decode()
    assert Job.objects.values().get() == before


def luminance(color: str) -> float:
    """WCAG 2, relative luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("state", State.values)
def test_badge_is_legible(viewer, state):
    text = viewer.get(LIST).content.decode()
    colors = re.search(rf"\.job-{state} {{ color: (#\w{{6}}); background: (#\w{{6}}); }}", text)
    dark, light = sorted(luminance(color) for color in colors.groups())
    assert (light + 0.05) / (dark + 0.05) >= 4.5


# Nodes


def test_pages_show_and_change_what_is_in_the_jobs_database(second, settings, admin_client):
    settings.JOBS = {**settings.JOBS, "DATABASES": ["default"]}
    settings.DATABASE_ROUTERS = [Replica()]
    Job.objects.using("default").bulk_create([Job(task="t", args=[], state="ready", queue="q")])
    job = Job.objects.using("default").get()
    assert short(job)[0] in admin_client.get(LIST).content.decode()
    page = reverse("admin:jobs_job_change", args=[job.pk])
    assert admin_client.get(page).status_code == 200
    admin_client.post(reverse("admin:jobs_job_operate_one", args=[job.pk]), {"operation": "cancel"})
    assert Job.objects.using("default").get().state == "cancelled"


def test_what_is_nested_as_deep_as_it_may_be_can_be_shown(admin_client):
    """A page has a deeper stack than a call."""
    deep = "s3cret"
    for _ in range(DEPTH - 3):
        deep = [deep]
    for call in ([deep], {"note": deep}):
        job = Job.objects.get(pk=noop.delay_many([call])[0].id)
        assert admin_client.get(reverse("admin:jobs_job_change", args=[job.pk])).status_code == 200
    assert admin_client.get(LIST).status_code == 200


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("year", [1, 9999])
def test_a_moment_at_the_edge_of_the_calendar_is_shown(viewer, settings, zone, year):
    """A person edited the row by hand."""
    settings.TIME_ZONE = zone
    at = datetime.datetime(year, *((1, 1) if year == 1 else (12, 31, 23)), tzinfo=datetime.UTC)
    job = make("failed", run_at=at, finished_at=at)
    assert viewer.get(page(job)).status_code == viewer.get(LIST).status_code == 200
