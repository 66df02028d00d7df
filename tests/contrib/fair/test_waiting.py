"""What people see of queues where keys take turns."""

from __future__ import annotations

import pytest
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.contrib.fair import waiting as shares
from jobs.contrib.fair.keys import NO_KEY
from jobs.contrib.operator import metrics, status
from jobs.contrib.why import waiting
from jobs.lifecycle import claims
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from tests.contrib.fair import tasks as bodies
from tests.helpers import why
from tests.helpers.rows import let_heartbeat

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("node")]


@pytest.fixture
def alive(node, monkeypatch):
    """This process's node is a worker."""
    monkeypatch.setattr(waiting, "LONG", 600)
    node.queues, node.tasks, node.concurrency = ["fair", "mail"], list(current_app.tasks), 8
    node.save()
    let_heartbeat(node)


def test_why_says_how_many_start_before_it(alive):
    bodies.of_a_customer.delay_many([("a", number) for number in range(50)])
    bodies.of_a_customer.delay_many([("b", number) for number in range(3)])
    bodies.of_nobody.delay_many([(number,) for number in range(100)])
    last = Job.objects.filter(fair_key="a").last()
    found = why.first(last.pk)
    # 49 of its own, 3 of b, and 50 of those without a key.
    assert found["code"] == "fair_turn"
    said = {name: found["evidence"][name] for name in ("waiting", "ahead", "others", "before")}
    assert said == {"waiting": 50, "ahead": 49, "others": 2, "before": 102}
    assert "Its key a has 50 waiting (before it: 49)" in found["says"]
    assert "takes turns with 2 other keys: about 102 jobs start before it" in found["says"]
    assert why.first(Job.objects.filter(fair_key="b").first().pk)["evidence"]["before"] == 2
    assert "Its key (none) has 100" in why.first(Job.objects.filter(fair_key=NO_KEY).first().pk)["says"]


def test_why_counts_the_larger_share_of_a_key(alive, settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"fair": {"weights": {"a": 3}}}}
    for key in "ab":
        bodies.of_a_customer.delay_many([(key, number) for number in range(20)])
    of_a, of_b = (list(Job.objects.filter(fair_key=key).order_by("pk")) for key in "ab")
    # Six of its own are two rounds: it starts in the third, as does one more of b before it at the most.
    found = why.first(of_a[6].pk)["evidence"]
    assert {name: found[name] for name in ("ahead", "before", "weight")} == {"ahead": 6, "before": 9, "weight": 3}
    # Two of its own, and of a three in each of three rounds.
    found = why.first(of_b[2].pk)["evidence"]
    assert {name: found[name] for name in ("ahead", "before", "weight")} == {"ahead": 2, "before": 11, "weight": 1}


def test_what_a_limit_keeps_is_told_by_the_limit(alive):
    bodies.one_of_a_customer.delay_many([("a", number) for number in range(2)])
    assert claims.claimer(None).claim("default", "fair", worker_state.node, 1)
    assert "limit_reached" in why.codes(Job.objects.get(state="ready").pk)


def test_a_project_may_hide_the_keys(alive, settings, admin_client):
    bodies.of_a_customer.delay_many([("Ada of Paris", number) for number in range(2)])
    pages = [reverse("admin:jobs_dashboard"), reverse("admin:jobs_job_change", args=[Job.objects.first().pk])]
    assert all("Ada of Paris" in admin_client.get(page).content.decode() for page in pages)
    settings.JOBS = {**settings.JOBS, "REDACT": "tests.helpers.redactions.hide_errors_and_keys"}
    assert "Ada of Paris" not in why.first(Job.objects.first().pk)["says"]
    assert '<th scope="row">Ada' not in admin_client.get(pages[0]).content.decode()


def test_the_dashboard_shows_the_share_of_each_key(admin_client, settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"fair": {"weights": {"a": 3}}}}
    bodies.of_a_customer.delay_many([(key, number) for key in "ab" for number in range(5)])
    bodies.of_a_customer.delay("a", 9)
    text = " ".join(admin_client.get(reverse("admin:jobs_dashboard")).content.decode().split())
    assert "fair: 2 keys take turns" in text
    first = text.index('<th scope="row">a</th><td data-label="Waiting">6</td><td data-label="Share">75 %</td>')
    assert first < text.index('<th scope="row">b</th><td data-label="Waiting">5</td><td data-label="Share">25 %</td>')


def test_the_page_of_limits_shows_who_takes_turns(admin_client, settings):
    page = reverse("admin:jobs_limit_changelist")
    assert "keys take turns" not in admin_client.get(page).content.decode()
    settings.JOBS = {**settings.JOBS, "QUEUES": {"fair": {"weights": {"a": 3}}}}
    bodies.of_a_customer.delay_many([(key,) for key in "ab"])
    text = " ".join(admin_client.get(page).content.decode().split())
    assert "fair: 2 keys take turns" in text
    assert '<th scope="row">a</th><td data-label="Waiting">1</td><td data-label="Share">75 %</td>' in text


def test_metrics_count_the_keys_of_a_queue():
    bodies.of_a_customer.delay_many([(key,) for key in "aabc"])
    bodies.of_nobody.apply_async((), queue="mail")
    assert status.gather(live=True)["fair"] == {"fair": {"keys": 3, "capped": False}}
    assert 'jobs_fair_keys{queue_name="fair"} 3.0' in metrics.exposition()[0].decode()


def test_queues_without_keys_cost_the_status_no_question_each():
    def queries(number: int) -> int:
        names = [f"queue{each}" for each in range(number)]
        with CaptureQueriesContext(connection) as captured:
            assert shares.status({"queues": {name: {"ready": 1} for name in names}}) == {}
        return len(captured)

    assert queries(1) == queries(50) == 1
