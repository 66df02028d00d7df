"""What needs attention, where the statistics know it, and the buttons and links that help on the dashboard."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.operator import problems, status
from jobs.contrib.operator.figures import Dashboard
from jobs.contrib.operator.statistics import HOUR, MINUTE, bucket
from jobs.contrib.pauses import pauses
from jobs.contrib.pruning.prune import Prune
from jobs.models import Job, Node
from tests.contrib.operator.tallies import tally
from tests.helpers.rows import let_heartbeat, make, make_node

pytestmark = pytest.mark.django_db(transaction=True)

URL, SEEN = reverse("admin:jobs_dashboard"), reverse("admin:jobs_node_seen")


def noted() -> list[problems.Problem]:
    return problems.of(status.gather(live=True))


def alive(**more) -> Node:
    return let_heartbeat(make_node(**more))


def test_all_is_well(staff):
    alive()
    assert 'class="jobs-health health-fine"' in staff("view_job").get(URL).content.decode()


def test_failures_are_counted_beside_the_other_problems():
    alive()
    make_node(dead_at=timezone.now())
    tally(2 * MINUTE, 105, state="failed", error="PaymentError")
    tally(1 * MINUTE, 1)
    assert problems.sentence(noted()) == "2 problems: 105 failed this hour · 1 worker died"


def failed(number: int, minutes: int, error: str = "PaymentError", **more) -> None:
    """Jobs whose first attempt failed then, or as ``more`` says, and what was counted of them."""
    tally(minutes * MINUTE, number, state="failed", error=error)
    for _ in range(number):
        make("failed", task="shop.mail", age=60 * minutes, error={"type": error, "message": "no"}, **more)


def test_a_task_that_only_fails_is_worse_than_one_that_fails_at_times():
    alive()
    tally(9 * MINUTE, 100)
    failed(20, 5)
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.about, remark.number) == ("failing", "error", "shop.mail", 1)
    assert remark.text == (
        "shop.mail: fails every time: all 20 first attempts of the last 5.0 min, mostly with PaymentError"
    )
    assert "20 of the 120 jobs that ended this hour failed" in remark.meaning
    assert 240 <= remark.since <= 420
    tally(3 * MINUTE, 1)
    [remark] = noted()
    assert (remark.severity, "20 of 121 failed this hour" in remark.text) == ("warning", True)


def test_a_deploy_is_named_if_the_task_worked_before_and_failed_after_it():
    """Tallies are by the minute."""
    tally(20 * MINUTE, 100)
    failed(20, 5)
    now, starts = timezone.now(), (30, 10, 2)
    for minutes in starts:
        alive(hostname=f"web{minutes}", version=f"shop-{minutes}", started_at=now - minutes * MINUTE)
    [remark] = noted()
    assert "since the deploy of version shop-10: 20 first attempts" in remark.text
    assert "since web10 was started; 20 of the 120 jobs" in remark.meaning
    assert remark.since == pytest.approx(600, abs=30)
    Node.objects.filter(hostname="web10").delete()
    assert "deploy of" not in noted()[0].text, "one was there before, and one came after"


def test_retries_of_bad_jobs_do_not_make_a_task_fail_every_time():
    """All others succeed, and those that were tried again ended last."""
    alive()
    first = {"type": "PaymentError", "message": "no", "at": (timezone.now() - 50 * MINUTE).isoformat(), "attempt": 1}
    tally(9 * MINUTE, 753)
    failed(19, 5, errors=[first, {**first, "at": (timezone.now() - 5 * MINUTE).isoformat(), "attempt": 2}])
    [remark] = noted()
    assert (remark.kind, remark.text) == (
        "failed", "shop.mail: 19 of 772 failed this hour, mostly with PaymentError"
    )  # fmt: skip


def test_a_parked_call_is_no_failure_that_is_to_be_retried():
    alive()
    failed(19, 5, error="EffectParked")
    assert noted() == []


def test_a_body_that_runs_far_longer_than_the_others_of_its_task():
    node = alive(concurrency=2, hostname="bulk@web1")
    tally(2 * HOUR, 500, length=3600, ran={str(bucket(0.076)): 495, "30": 5})
    hung = make("running", task="shop.mail", node=node, age=240)
    make("running", node=node, age=240)
    make("running", task="shop.mail", age=30)
    [remark] = noted()
    assert (remark.kind, remark.about) == ("stuck", hung.pk)
    assert re.fullmatch(r"shop.mail: runs for 4.0 min, and 95 % of its runs end within [678]\d ms", remark.text)


def test_a_worker_all_of_whose_processes_hang():
    node = alive(concurrency=2, hostname="bulk@web1")
    tally(2 * HOUR, 500, length=3600, ran={str(bucket(0.076)): 500})
    hung = [make("running", task="shop.mail", node=node, age=age) for age in (1800, 1700)]
    worker, *others = noted()
    assert (worker.kind, worker.severity, worker.about) == ("held", "error", str(node.pk))
    assert worker.text == (
        "bulk@web1: all 2 processes are held by bodies that run too long: shop.mail (30 min, 28 min)"
    )
    assert worker.command == f"manage.py jobs kill {hung[0].pk} {hung[1].pk}"
    assert {each.kind for each in others} == {"stuck"}


def test_a_worker_with_more_processes_than_jobs_are_listed(monkeypatch):
    monkeypatch.setattr(status, "OLDEST", 2)
    node = alive(concurrency=3)
    for age in (2000, 1900, 1850):
        make("running", node=node, age=age)
    assert [each.kind for each in noted()] == ["held", "stuck", "stuck"]
    assert "all 3 processes are held" in noted()[0].text
    Job.objects.filter(pk=Job.objects.order_by("-started_at")[0].pk).update(started_at=timezone.now())
    assert [each.kind for each in noted()] == ["stuck", "stuck"]


def test_a_queue_that_grows_faster_than_it_drains():
    node = alive()
    make("running", node=node, queue="mail")
    for _ in range(40):
        make("ready", queue="mail", age=300)
    tally(2 * MINUTE, 10, queue="mail")
    [remark] = Dashboard().problems
    assert (remark.kind, remark.about) == ("growing", "mail")
    assert "4.1 jobs a minute come, and 1.0 are done" in remark.text


def test_prune_that_is_behind(settings):
    alive()
    settings.JOBS = {**settings.JOBS, "RETENTION": 86400.0}
    make("succeeded", age=3 * 86400)
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.about) == ("unpruned", "warning", "default")
    assert remark.text == "prune is behind: the oldest job that should be gone ended 3.0 d ago"
    assert problems.sentence([remark]) == "1 problem: prune is behind"
    Prune().run_once()
    assert noted() == []


def test_failures_can_be_retried_and_seen_from_their_row(admin_client):
    # Retries take about a day.
    make("failed", task="shop.mail", age=90_000, finished_at=timezone.now())
    make("failed", task="shop.mail", age=90_000)
    tally(2 * MINUTE, 1, state="failed", error="E")
    text = admin_client.get(URL).content.decode()
    query = "state__exact=failed&amp;task=shop.mail&amp;ended=1h"
    assert f'href="{reverse("admin:jobs_job_changelist")}?{query}"' in text
    action = f"{reverse('admin:jobs_job_operate')}?{query}"
    assert f'action="{action}"' in text
    admin_client.post(action.replace("&amp;", "&"), {"operation": "retry", "scope": "all"})
    assert sorted(Job.objects.values_list("state", flat=True)) == ["failed", "ready"]


def test_who_may_not_say_that_he_has_seen_it_has_no_button(staff):
    make_node(dead_at=timezone.now())
    alive()
    assert SEEN not in (viewer := staff("view_job")).get(URL).content.decode()
    assert viewer.post(SEEN).status_code == 403
    assert [each.kind for each in noted()] == ["dead"]


def test_seen(admin_client):
    alive()
    make_node(dead_at=timezone.now())
    page = admin_client.get(URL).content.decode()
    assert SEEN in page
    make_node(hostname="later", dead_at=timezone.now())
    admin_client.post(SEEN, {"nodes": re.search('name="nodes" value="(.+?)"', page)[1]})
    [remark] = noted()
    assert remark.text == "a worker died: later", "it died after the page was made"
    admin_client.post(SEEN, {"nodes": ",".join(remark.about)})
    assert noted() == []
    assert status.gather(live=True)["dead_nodes"] == 2, "they died all the same"


def test_a_paused_queue_can_be_resumed_and_a_long_run_killed(admin_client):
    pauses.pause("mail", "ada", "moving")
    long = make("running", node=alive(), age=7200)
    text = admin_client.get(URL).content.decode()
    assert 'aria-label="Resume: the queue mail is paused by ada' in text
    assert reverse("admin:jobs_job_operate_one", args=[long.pk]) in text


def test_without_any_worker_no_queue_is_looked_at_by_itself():
    found = []
    for number in range(8):
        make("ready", queue=f"q{number}", age=3600)
        with CaptureQueriesContext(connection) as queries:
            assert [each.kind for each in noted()] == ["no_worker"]
        found.append(len(queries))
    assert found[0] == found[-1]
