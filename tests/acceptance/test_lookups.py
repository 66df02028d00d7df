"""What a URL of the admin may ask for: the parameters of its own pages, and nothing of a row besides."""

from __future__ import annotations

import datetime

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.saved_filters.models import SavedFilter
from jobs.events.models import Event, Subscription
from jobs.models import Batch, Effect, Job, Limit, Marker, Node, Overview, Schedule, Signal, tables
from tests.helpers.rows import make, make_node

pytestmark = pytest.mark.django_db

MODELS = [model for model in tables() if site.is_registered(model)]
SECRET = "s3cret"

#: Endings of a lookup: of text, of JSON, of time, and one that no database can read.
ENDINGS = [
    "", "__exact", "__startswith=s", "__icontains=s", "__regex=(", "__in=s", "__isnull=0", "__gt=a", "__year=2026",
    "__password__startswith=s",
]  # fmt: skip

#: Ways from one row to others.
WAYS = ["node__jobs__kwargs__password", "node_id__jobs__kwargs__password", "node_id__jobs__pk", "batch__on_success",
        "batch_id__on_success", "batch__jobs__args", "jobs__kwargs__password", "jobs__error__message", "pk",
        "node_id__jobs__node__jobs__node__jobs__args", "logentry__user__password", "job_ptr__kwargs", "gone",
        "error_message", "error_type", "is_made"]  # fmt: skip


@pytest.fixture
def rows(db) -> dict[type, object]:
    """A row of each model, with a value that nobody may find out."""
    now = timezone.now()
    node, batch = make_node(), Batch.objects.create(name="b", on_success={"kwargs": {"password": SECRET}})
    job = make("failed", node=node, batch=batch, kwargs={"password": SECRET})
    found = {
        Job: job,
        Node: node,
        Batch: batch,
        Marker: Marker.objects.create(key=SECRET, kind="once", job=job.pk),
        Effect: Effect.objects.create(name="charge", key=SECRET, job=job.pk, lease=1, answer={"password": SECRET}),
        Event: Event.objects.create(name="shop.paid", source="shop", data={"password": SECRET}, at=now),
        Subscription: Subscription.objects.create(
            handler="a.b", pattern="shop.*", service="shop", queue="celery", version=1, since=Now()
        ),
        Schedule: Schedule.objects.create(
            name="nightly", task="a.b", timing="daily", defined_at=now, last_tick=now - datetime.timedelta(hours=1)
        ),
        Limit: Limit.objects.create(name="@celery", concurrency=1),
        Signal: Signal.objects.create(key="approved:1", payload={"password": SECRET}, taken_by=job.pk),
        SavedFilter: SavedFilter.objects.create(owner=SECRET, name="a", query="queue=a", is_shared=True),
    }
    assert found.keys() == {*MODELS} - {Overview}, "each model with pages is tried"
    return found


def page_of(model: type, name: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=args)


def lookups(model: type) -> list[str]:
    admin = site.get_model_admin(model)
    names = {name for field in model._meta.get_fields() for name in (field.name, getattr(field, "attname", field.name))}
    asked = [f"{name}{end}" for name in sorted(names) + WAYS for end in ENDINGS]
    own = {*admin.lookups, *(each.parameter_name for each in admin.list_filter if hasattr(each, "parameter_name"))}
    return [each if "=" in each else f"{each}={SECRET}" for each in asked if each.partition("=")[0] not in own]


@pytest.mark.slow
@pytest.mark.parametrize("model", [model for model in MODELS if model not in (Limit, Overview)])
def test_no_list_is_filtered_by_what_is_no_filter_of_it(admin_client, rows, model):
    url = page_of(model, "changelist")
    assert admin_client.get(url).status_code == 200
    asked = lookups(model)
    assert len(asked) > 100
    passed = [each for each in asked if admin_client.get(f"{url}?{each}").status_code != 400]
    assert not passed


def test_nor_is_an_operation_on_all_that_a_list_shows(admin_client, rows):
    url = reverse("admin:jobs_job_operate")
    for each in ("node_id__jobs__kwargs__password__startswith=s", "pk__gt=0", "error_message__regex=("):
        answer = admin_client.post(f"{url}?{each}", {"operation": "retry", "scope": "all"})
        assert answer.status_code == 400, each
    assert Job.objects.get().state == "failed"


def others(rows) -> list[str]:
    """All pages of the admin beside the lists that a GET shows."""
    found = [
        reverse(f"admin:jobs_{name}") for name in ("dashboard", "overview_changelist", "verify", "limit_changelist")
    ]
    for model, row in rows.items():
        found += [page_of(model, end, row.pk) for end in ("change", "history", "delete")]
    return found


@pytest.mark.slow
def test_no_other_page_heeds_a_lookup(admin_client, rows):
    for url in others(rows):
        plain = admin_client.get(url).status_code
        for each in ("kwargs__password__startswith=s", "pk=0", "error_message__regex=(", "_changelist_filters=pk%3D0"):
            with CaptureQueriesContext(connection) as queries:
                assert admin_client.get(f"{url}?{each}").status_code == plain < 500, (url, each)
            asked = [query["sql"] for query in queries if "REGEXP" in query["sql"] or "startswith" in query["sql"]]
            assert not asked, (url, each)


@pytest.mark.parametrize("model", [model for model in MODELS if model not in (Limit, Overview)])
def test_what_django_itself_reads_of_a_url_tells_nothing_and_sorts_nothing(admin_client, rows, model):
    url = page_of(model, "changelist")
    changed = page_of(model, "change", rows[model].pk)
    for name in ("kwargs", "key", "data", "answer", "hostname", "password", "task", "node"):
        assert admin_client.get(f"{url}?_to_field={name}").status_code == 400
        assert admin_client.get(f"{changed}?_to_field={name}").status_code == 400
    pk = model._meta.pk.name
    for each in (f"_to_field={pk}&_popup=1", "_popup=1", "_facets=True", "all=", "o=1.-2.99.x", "o=kwargs", "e=1"):
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(f"{url}?{each}").status_code == 200, each
        orders = " ".join(query["sql"].partition(" ORDER BY ")[2] for query in queries)
        assert not any(f'"{name}"' in orders for name in ("kwargs", "args", "data", "answer", "on_success")), each


@pytest.mark.slow
@pytest.mark.parametrize("model", [model for model in MODELS if model not in (Limit, Overview)])
def test_no_value_of_a_filter_breaks_a_list(admin_client, rows, model):
    """On PostgreSQL no text has a NUL."""
    url = page_of(model, "changelist")
    admin = site.get_model_admin(model)
    own = {*admin.lookups, *(each.parameter_name for each in admin.list_filter if hasattr(each, "parameter_name"))}
    for name in {*own, "q", "p", "o", "all", "_popup"}:
        for value in ("%00", "%ED%A0%80", "x" * 3000, "-1", "9" * 30, "[" * 3000, "{", "%F0%9F%92%A9", ""):
            assert admin_client.get(f"{url}?{name}={value}").status_code < 500, (name, value)


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 20_000, "5", "{", "[[1]]", "[null]", '{"a": 1}'])
def test_json_that_a_form_did_not_make_is_refused(admin_client, rows, text):
    for name in ("jobs_job_operate", "jobs_events_event_replay"):
        answer = admin_client.post(reverse(f"admin:{name}"), {"operation": "retry", "keys": text, "to": "shop"})
        assert answer.status_code in (302, 403), name
    call = Effect.objects.get()
    Effect.objects.update(state="parked")
    url = reverse("admin:jobs_effect_settle", args=[call.pk])
    assert admin_client.post(url, {"verb": "happened", "answer": text}).status_code == 302
    assert admin_client.get(reverse("admin:jobs_effect_change", args=[call.pk])).status_code == 200
    call.refresh_from_db()
    assert (call.state == "sent") == (text in ("5", "[[1]]", "[null]", '{"a": 1}'))


# Who sees anything at all


def test_no_permission_but_that_to_view_shows_a_row(staff, rows):
    """As the table of permissions says. Django lets whoever may change or delete a row see it."""
    labels = {model._meta.app_label for model in tables()}
    names = Permission.objects.filter(content_type__app_label__in=labels).exclude(codename__startswith="view_")
    client = staff(*names.values_list("codename", flat=True))
    shown = [*others(rows), *(page_of(model, "changelist") for model in rows)]
    answers = {url: client.get(url) for url in shown}
    assert {url: answer.status_code for url, answer in answers.items() if answer.status_code not in (403, 302)} == {}
    for model, row in rows.items():
        url = page_of(model, "delete", row.pk)
        assert client.post(url, {"post": "yes"}).status_code == 403
        assert model.objects.filter(pk=row.pk).exists()
    assert not [url for url, answer in answers.items() if SECRET in answer.content.decode()]
    url = page_of(Effect, "settle", rows[Effect].pk)
    assert client.post(url, {"verb": "happened"}).status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["change", "delete", "add"])
@pytest.mark.parametrize("model", [model for model in MODELS if model is not Overview])
def test_nor_does_any_of_them_alone(staff, rows, model, kind):
    name = model._meta.model_name
    client = staff(f"{kind}_{name}")
    for url in others(rows):
        assert client.get(url).status_code in (403, 302), url
    assert client.get(page_of(model, "changelist")).status_code == 403


def test_each_link_of_each_filter_leads_to_a_list(admin_client):
    """What a filter draws the list has to allow."""
    now = timezone.now()
    job = make("failed", queue="mail")
    make_node(dead_at=now)
    Effect.objects.create(name="pay", key="1", job=job.pk, lease=1)
    Marker.objects.create(key="a", kind="once")
    Event.objects.create(name="shop.paid", source="shop")
    moments = dict.fromkeys(("defined_at", "seen_at", "last_tick", "paused_at"), now)
    Schedule.objects.create(name="nightly", task="shop.nightly", timing="every day", **moments)
    for service in ("loyalty", "billing"):
        Subscription.objects.create(service=service, handler="shop.award", pattern="shop.*", queue="mail")
    followed = set()
    for model, page in site._registry.items():
        if model not in tables() or not page.list_filter:
            continue
        url = page_of(model, "changelist")
        shown = admin_client.get(url).context["cl"]
        links = {
            each["query_string"] for spec in shown.filter_specs for each in spec.choices(shown) if "display" in each
        }
        for link in links:
            assert admin_client.get(url + link).status_code == 200, url + link
        followed |= {model} if len(links) > 1 else set()
    assert followed == {Job, Node, Effect, Marker, Event, Schedule, Signal, Subscription}
