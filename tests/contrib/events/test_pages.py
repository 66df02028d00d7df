"""The pages of events: what waits, where one led, and how late each handler is."""

from __future__ import annotations

import datetime
import html
import json
import re
import uuid

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.operator import problems, status
from jobs.events import stages as events
from jobs.events.models import Event, Subscription
from jobs.models import Action, Job
from jobs.testing import run_jobs
from tests.contrib.events import tasks as told
from tests.contrib.events.rows import open_ones, row
from tests.helpers.plans import plan
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db

LIST = reverse("admin:jobs_event_changelist")
SUBSCRIPTIONS = reverse("admin:jobs_subscription_changelist")


def staff(client, *codenames: str):
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(user)
    return client


@pytest.fixture
def viewer(client):
    return staff(client, "view_event", "view_subscription", "view_job")


def page(event: Event) -> str:
    return reverse("admin:jobs_event_change", args=[event.pk])


def text(client, url: str, **query: str) -> str:
    response = client.get(url, query)
    assert response.status_code == 200, response
    return html.unescape(response.content.decode())


def listed(client, **query: str) -> list[str]:
    return re.findall(r'<th class="field-short_id"><a href="[^"]*">([0-9a-f]{8})</a>', text(client, LIST, **query))


def short(*rows: Event) -> list[str]:
    return [str(each.uuid)[-8:] for each in rows]


# The list


def test_events_are_listed_newest_first_and_found_by_how_far_they_are(viewer):
    rows = open_ones()
    assert listed(viewer) == short(*reversed(rows.values()))
    for name in ("unrelayed", "unsent", "parked", "problem", "sent"):
        assert listed(viewer, way=name) == short(rows[name])
    assert listed(viewer, way="received") == short(rows["received"], rows["problem"], rows["parked"])
    found = text(viewer, LIST)
    for words in ("waits to be handed on (1)", "waits to be published (1)", "waits for an earlier one (1)"):
        assert words in found
    for words in ("has a problem (1)", '<span class="job-state job-failed">not handled</span>', "crm.user.moved"):
        assert words in found
    assert 'job-failed">refused</span>' not in found
    row(problem="too large")
    assert 'job-failed">refused</span>' in text(viewer, LIST)


def test_search_by_name_id_order_key_and_source(viewer):
    rows = open_ones()
    keyed = row(order_key="user:7")
    assert listed(viewer, q="crm.") == listed(viewer, name="crm.user.moved") == short(rows["received"])
    assert listed(viewer, q=str(keyed.uuid)) == listed(viewer, q=str(keyed.uuid)[-8:]) == short(keyed)
    assert listed(viewer, q="user:7") == short(keyed)
    assert len(listed(viewer, q="crm")) == 1, "the beginning of a name is before a source"
    row("a.b", source="billing")
    assert len(listed(viewer, q="billing")) == 1
    assert listed(viewer, q="nothing") == []


def statements(client, url: str, **query: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url, query).status_code == 200
    return [each["sql"] for each in queries]


def test_the_list_takes_the_same_statements_for_6_events_and_for_60(viewer):
    open_ones()
    few = statements(viewer, LIST)
    for number in range(60):
        row(f"shop.thing{number % 5}", problem="no" if number % 2 else None)
    assert len(listed(viewer)) == 50
    assert len(statements(viewer, LIST)) == len(few) <= 16


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.core
@pytest.mark.django_db(transaction=True)
def test_no_page_reads_a_long_history(viewer):
    """At 100,000 events that are through, and a few of each kind that are not."""
    now = timezone.now()
    row(relayed_at=now, number=0, sent_at=now)
    new_id = "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
    names = [f.column for f in Event._meta.concrete_fields if f.column not in ("id", "uuid", "number", "job")]
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
            f"INSERT INTO jobs_event (uuid, number, {', '.join(names)}) "
            f"SELECT {new_id}, i + 9, {', '.join(names)} FROM jobs_event, n"
        )
    open_ones()
    [job] = [make("succeeded")]
    cause = row(job=job.pk)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    for url, query in [
        (LIST, {}),
        (LIST, {"p": "last"}),
        *((LIST, {"way": way}) for way in events.OPEN),
        (LIST, {"way": "received"}),
        (LIST, {"name": "crm.user.moved"}),
        (LIST, {"q": "shop."}),
        (LIST, {"q": "nothing"}),
        (page(cause), {}),
        (reverse("admin:jobs_job_change", args=[job.pk]), {}),
        (SUBSCRIPTIONS, {}),
        (reverse("jobs:metrics") if False else "/jobs/metrics", {}),
    ]:
        for sql in statements(viewer, url, **query):
            if "jobs_event" in sql and sql.lstrip().startswith(("SELECT", "WITH")):
                found = plan(sql)
                # SQLite calls it a scan, too, where it takes the first rows in the order of the key.
                scans = r"Seq Scan on jobs_event\b" + (r"|SCAN jobs_event$" if "WHERE" in sql else "")
                assert not re.search(scans, found, re.M), (sql, found)
                passed = re.findall(r"Rows Removed by Filter: (\d+)", found)
                assert sum(map(int, passed)) <= events.MOST, (sql, found)


# One event


@pytest.mark.django_db(transaction=True)
def test_a_page_tells_an_events_whole_way(viewer, settings):
    job = make("succeeded")
    event = Event.objects.get(uuid=told.thing_made("a"))
    run_jobs()
    [first, _] = Job.objects.filter(parent_id=event.uuid).order_by("pk")
    event.refresh_from_db()
    Event.objects.filter(pk=event.pk).update(job=job.pk, headers={"traceparent": "00-ab-cd-01"})
    # What a handler's job told of, and what that led to.
    following = row(job=first.pk, relayed_at=timezone.now())
    last = make("failed", parent_id=following.uuid, lease=3)
    found = text(viewer, page(event))
    for other in (job, first, last):
        assert reverse("admin:jobs_job_change", args=[other.pk]) in found
    assert page(following) in found
    for words in ("3 attempts", "traceparent", "00-ab-cd-01", "test.thing.made", '"name": "a"', "handed on"):
        assert words in found
    # From its handler's job there is a way back, and from the job that told of it one to the event.
    child = text(viewer, reverse("admin:jobs_job_change", args=[first.pk]))
    assert page(event) in child
    assert "the event test.thing.made" in child
    assert page(following) in child
    assert "not a job here" not in child
    assert page(event) in text(viewer, reverse("admin:jobs_job_change", args=[job.pk]))


def test_a_long_way_is_cut_and_says_so(viewer):
    event = row()
    for _ in range(events.SHOWN):
        make("succeeded", parent_id=event.uuid)
    assert "There may be more" not in text(viewer, page(event))
    make("succeeded", parent_id=event.uuid)
    found = text(viewer, page(event))
    assert "There may be more" in found
    assert found.count("tests.tasks.effect") == events.SHOWN


def test_a_page_takes_few_statements(viewer):
    event = row()
    few = len(statements(viewer, page(event)))
    for _ in range(20):
        row(job=make("succeeded", parent_id=event.uuid).pk)
    assert len(statements(viewer, page(event))) <= few + 2


def redact(task, name, value):
    assert task == "shop.order.paid"
    return "***" if name == "order_id" else value


def test_data_is_redacted_as_arguments_are(viewer, settings):
    event = row(data={"order_id": "secret-7", "cents": 5})
    assert "secret-7" in text(viewer, page(event))
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.contrib.events.test_pages.redact"}
    found = text(viewer, page(event))
    assert "secret-7" not in found
    assert '"***"' in found
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.nowhere.redact"}
    assert "secret-7" not in text(viewer, page(event))
    # What Celery's tasks have beside it, and the text of what is no event.
    task = row(headers={"args": ["secret-8"], "traceparent": "00-ab"})
    broken = row(data={"body": "secret-9"}, problem="its body is not JSON")
    assert "secret-8" not in text(viewer, page(task))
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.contrib.events.test_pages.redact"}
    assert "secret-9" not in text(viewer, page(broken))
    settings.JOBS = {**settings.JOBS, "REDACT": None}
    assert "secret-9" in text(viewer, page(broken))
    assert re.search(r"secret-8.*00-ab", text(viewer, page(task)), re.S)


def test_nothing_that_an_event_says_becomes_markup(viewer):
    evil = "<script>alert(1)</script>"
    event = row(evil, source=evil, order_key=evil, problem=evil, data={"a": evil}, headers={"traceparent": evil})
    for url in (LIST, page(event)):
        assert evil not in viewer.get(url).content.decode()


def test_permissions_and_nothing_to_edit(client, admin_client):
    event = row()
    for url in (LIST, page(event), SUBSCRIPTIONS):
        assert admin_client.get(url).status_code == 200
        assert admin_client.post(url, {"name": "x"}).status_code in (200, 302, 403)
    event.refresh_from_db()
    assert event.name == "shop.order.paid"
    job = make(parent_id=event.uuid)
    nobody = staff(client, "view_job")
    for url in (LIST, page(event), SUBSCRIPTIONS):
        assert nobody.get(url).status_code == 403
    row(job=job.pk, name="told.by.it")
    assert "told.by.it" not in text(nobody, reverse("admin:jobs_job_change", args=[job.pk]))


# The handlers


def subscription(handler: str = "shop.tasks.award", **more) -> Subscription:
    values = {"service": "loyalty", "handler": handler, "pattern": "shop.order.*", "queue": "celery", **more}
    return Subscription.objects.create(**values)


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_subscriptions_tell_how_late_each_handler_is(viewer):
    subscription()
    subscription("shop.tasks.idle", queue="other")
    row()
    about = {"task": "shop.tasks.award"}
    make("ready", age=3600, task="other")
    make("ready", age=60, **about)
    make("scheduled", age=600, run_at=timezone.now() + datetime.timedelta(days=1), **about)
    make("running", age=30, **about)
    make("ready", age=10, held=True, limit_key="x", **about)
    for state in ("failed", "failed", "cancelled", "succeeded"):
        make(state, age=7200, **about)
    lags = events.lags("default", [("shop.tasks.award", "celery"), ("shop.tasks.idle", "other")])
    assert set(lags) == {"shop.tasks.award"}
    lag = lags["shop.tasks.award"]
    assert (lag.waiting, lag.failed) == (4, 2)
    assert 590 < lag.seconds < 700
    found = text(viewer, SUBSCRIPTIONS)
    for words in ("loyalty", "shop.tasks.award", "shop.order.*", "10 min", ">4</a>", ">2</a>"):
        assert words in found
    few = len(statements(viewer, SUBSCRIPTIONS))
    for number in range(20):
        subscription(f"t{number}", queue=f"q{number}")
    assert len(statements(viewer, SUBSCRIPTIONS)) == few
    one = Subscription.objects.get(handler="shop.tasks.award")
    found = text(viewer, reverse("admin:jobs_subscription_change", args=[one.pk]))
    assert f"{LIST}?name=shop.order.paid" in found


def test_lags_of_no_handler_are_none():
    assert events.lags("default", []) == {}


# The button


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_events_are_replayed_to_one_service_and_it_is_told_who_did(admin_client):
    told.thing_made("a")
    told.thing_made("b")
    run_jobs()
    first, second = Event.objects.order_by("pk")
    url = reverse("admin:jobs_event_replay")
    assert 'value="shop"' in text(admin_client, page(first))
    # Nothing that a handler had already, but with "again" all of it.
    form = {"keys": json.dumps([str(first.uuid)]), "to": "shop", "why": "it was wrong"}
    assert "0 jobs made" in admin_client.post(url, form, follow=True).content.decode()
    found = html.unescape(admin_client.post(url, {**form, "again": "on"}, follow=True).content.decode())
    for words in ("1 replayed: 2 jobs made, 0 messages sent.", "to shop, once more: it was wrong", "admin"):
        assert words in found
    entry = LogEntry.objects.order_by("pk").last()
    assert (entry.object_id, entry.get_change_message()) == (str(first.pk), "replay to shop it was wrong")
    assert len(run_jobs()) == 2
    # Those that are chosen on the list, with a question before.
    chosen = {"action": "ask", "_selected_action": [first.pk, second.pk], "index": "0"}
    asks = html.unescape(admin_client.post(LIST, chosen).content.decode())
    assert "2 events are replayed." in asks
    keys = json.loads(re.search(r'name="keys" value="([^>]*)">', asks)[1])
    assert keys == [str(first.uuid), str(second.uuid)]
    found = admin_client.post(url, {"keys": json.dumps(keys), "to": "shop", "again": "on"}, follow=True)
    assert "2 replayed: 4 jobs made" in html.unescape(found.content.decode())


@pytest.mark.django_db(transaction=True)
def test_a_replay_to_nobody_does_nothing(admin_client, client):
    told.thing_made("a")
    run_jobs()
    event = Event.objects.get()
    url, form = reverse("admin:jobs_event_replay"), {"keys": json.dumps([str(event.uuid)]), "again": "on"}
    for to, says in (("shp", "did you mean"), ("", "Name the service.")):
        found = admin_client.post(url, {**form, "to": to}, follow=True)
        assert says in html.unescape(found.content.decode())
    # An event that is gone by now means none, and not all.
    for keys in ([], [str(uuid.uuid4())]):
        found = admin_client.post(url, {"keys": json.dumps(keys), "to": "shop", "again": "on"}, follow=True)
        assert "They are gone." in html.unescape(found.content.decode())
    for keys in ("x", "[5]", "{}", '["not-one"]'):
        assert admin_client.post(url, {"keys": keys, "to": "shop"}).status_code in (302, 403)
    viewer = staff(client, "view_event")
    assert 'name="keys"' not in text(viewer, page(event))
    assert viewer.post(url, {**form, "to": "shop"}).status_code == 403
    assert not Action.objects.exists()
    assert Job.objects.filter(parent_id=event.uuid).count() == 2


# What needs attention, and what machines ask for


def test_what_does_not_get_on_is_a_remark(admin_client):
    def found() -> dict[str, problems.Problem]:
        every = problems.of(status.gather(live=True))
        return {each.about: each for each in every if each.kind.startswith("events_")}

    row(age=1)
    assert found() == {}, "in a moment it is handed on"
    open_ones()
    said = found()
    assert {name: each.kind for name, each in said.items()} == {
        "unrelayed": "events_waiting", "unsent": "events_waiting", "parked": "events_waiting",
        "problem": "events_problem",
    }  # fmt: skip
    assert said["unsent"].severity == problems.ERROR
    assert "1 event waits to be published, for 2.0 min" in said["unsent"].text
    assert "2 events wait to be handed on, the oldest for 60" in said["unrelayed"].text
    worker_state = text(admin_client, reverse("admin:jobs_dashboard"))
    for name in said:
        assert f"{LIST}?way={name}" in worker_state


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_metrics_of_events(admin_client):
    def metrics() -> dict[str, float]:
        lines = admin_client.get("/jobs/metrics").content.decode().splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(("jobs_events", "jobs_handler")))
        return {name: float(value) for name, _, value in found}

    assert set(metrics().values()) == {0.0}
    open_ones()
    subscription()
    for number in range(3):
        make("ready", task="shop.tasks.award", age=60 * number)
    make("failed", task="shop.tasks.award", age=9000)
    found = metrics()
    for name, age in (("unrelayed", 60), ("unsent", 120), ("parked", 180), ("problem", 240)):
        assert found[f'jobs_events{{status="{name}"}}'] == 1
        assert age <= found[f'jobs_events_oldest_seconds{{status="{name}"}}'] < age + 50
    whose = '{handler="shop.tasks.award",service="loyalty"}'
    assert (found[f"jobs_handler_waiting{whose}"], found[f"jobs_handler_failed{whose}"]) == (3, 1)
    assert 119 < found[f"jobs_handler_lag_seconds{whose}"] < 170
