"""What needs attention: each thing that may go wrong is said, once, with what somebody can do about it."""

from __future__ import annotations

import datetime

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.inspection import census, remarks
from jobs.inspection.dashboard import Dashboard
from jobs.lifecycle import queues
from jobs.lifecycle.transitions import PARKED
from jobs.maintenance.tally import MINUTE
from jobs.models import Cancellation, Job, Node
from tests.rows import let_beat, make, make_node
from tests.test_dashboard import URL, tally

pytestmark = pytest.mark.django_db(transaction=True)


def noted() -> list[remarks.Remark]:
    return remarks.of(census.gather(live=True))


def alive(**more) -> Node:
    node = make_node(**more)
    let_beat(node)
    return node


def test_all_is_well(staff):
    alive()
    assert noted() == []
    assert remarks.sentence([]) == "All is well."
    text = staff("view_job").get(URL).content.decode()
    assert 'class="jobs-health health-fine"' in text


def test_the_sentence_counts_the_problems_and_names_them():
    alive(queues=["celery"])
    for queue in ("mail", "slow"):
        make("ready", queue=queue, age=600)
    make_node(dead_at=timezone.now())
    tally(2 * MINUTE, 105, state="failed", error="PaymentError")
    tally(1 * MINUTE, 1)
    assert remarks.sentence(noted()) == "4 problems: no worker for 2 queues · 105 failed this hour · 1 worker died"


def test_a_task_that_only_fails_is_worse_than_one_that_fails_at_times():
    alive()
    tally(9 * MINUTE, 100)
    tally(5 * MINUTE, 20, state="failed", error="PaymentError")
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.about, remark.number) == ("failing", "error", "shop.mail", 1)
    assert "fails every time, 20 of 120 this hour, mostly with PaymentError" in remark.text
    assert 240 <= remark.since <= 420
    tally(3 * MINUTE, 1)
    [remark] = noted()
    assert (remark.severity, "20 of 121 failed this hour" in remark.text) == ("warning", True)


def test_a_deploy_is_named_if_the_task_worked_before_and_failed_after_it():
    """Tallies are by the minute."""
    tally(20 * MINUTE, 100)
    tally(5 * MINUTE, 20, state="failed", error="PaymentError")
    now, starts = timezone.now(), (30, 10, 2)
    for minutes in starts:
        alive(hostname=f"web{minutes}", version=f"shop-{minutes}", started_at=now - minutes * MINUTE)
    [remark] = noted()
    assert "since the deploy of version shop-10, 20 of 120" in remark.text
    assert "since web10 was started" in remark.meaning
    assert remark.since == pytest.approx(600, abs=30)
    Node.objects.filter(hostname="web10").delete()
    assert "deploy of" not in noted()[0].text, "one was there before, and one came after"


def test_a_dead_worker_is_told_of_until_somebody_has_seen_it(staff):
    week = timezone.now() - datetime.timedelta(days=6)
    make_node(hostname="bulk@web1", dead_at=week)
    make_node(dead_at=week, signed_off=True)
    alive()
    [remark] = noted()
    assert (remark.kind, remark.text) == ("dead", "a worker died: bulk@web1")
    url = reverse("admin:jobs_node_seen")
    assert url not in (viewer := staff("view_job")).get(URL).content.decode()
    assert viewer.post(url).status_code == 403
    assert noted() == [remark] or noted()[0].kind == "dead"


def test_seen(admin_client):
    alive()
    make_node(dead_at=timezone.now())
    url = reverse("admin:jobs_node_seen")
    assert url in admin_client.get(URL).content.decode()
    admin_client.post(url)
    assert noted() == []
    assert census.gather(live=True)["dead_nodes"] == 1, "it died all the same"


def test_a_paused_queue_is_a_problem_if_jobs_wait(admin_client):
    queues.pause("mail", "ada", "moving")
    alive()
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.line) == (
        "paused", "info", "the queue mail is paused by ada (moving); manage.py jobs resume mail"
    )  # fmt: skip
    assert "1 problem" not in remarks.sentence([remark])
    make("ready", queue="mail")
    [remark] = noted()
    assert (remark.severity, remark.text) == ("warning", "the queue mail is paused by ada (moving); 1 job waits")
    assert 'aria-label="Resume: the queue mail is paused by ada' in admin_client.get(URL).content.decode()


def test_a_queue_that_grows_faster_than_it_drains():
    node = alive()
    make("running", node=node, queue="mail")
    for _ in range(40):
        make("ready", queue="mail", age=300)
    tally(2 * MINUTE, 10, queue="mail")
    [remark] = Dashboard().remarks
    assert (remark.kind, remark.about) == ("growing", "mail")
    assert "4.1 jobs a minute come, and 1.0 are done" in remark.text


def test_a_body_that_runs_for_long_or_does_not_heed(admin_client):
    node = alive()
    make("running", node=node, age=60)
    assert noted() == []
    long, deaf = make("running", node=node, age=7200), make("running", node=node, age=600)
    Cancellation.objects.create(job=deaf.pk, at=timezone.now() - datetime.timedelta(seconds=300))
    assert {remark.about: remark.kind for remark in noted()} == {long.pk: "stuck", deaf.pk: "stuck"}
    text = admin_client.get(URL).content.decode()
    assert reverse("admin:jobs_job_operate_one", args=[long.pk]) in text


def test_no_worker_at_all():
    [remark] = noted()
    assert (remark.kind, remark.severity, remark.command) == ("no_worker", "error", "celery -A shop worker")
    assert remarks.sentence([remark]) == "1 problem: no worker is alive"
    make("ready", age=600)
    [remark] = noted()
    assert (remark.kind, remark.text) == (
        "no_worker",
        "no worker is alive, and the oldest ready job has waited 10 min",
    )
    alive(queues=["mails"])
    assert [(each.kind, each.command) for each in noted()] == [("starving", "celery -A shop worker -Q celery")]


def test_a_queue_waits_for_workers_that_are_busy_with_another_one():
    """It is broken only if one of them is free and takes nothing."""
    node = alive(queues=["mail", "slow"], concurrency=2)
    make("ready", queue="mail", age=600)
    [remark] = noted()
    assert (remark.kind, remark.severity) == ("standing", "error")
    for _ in range(2):
        make("running", queue="slow", node=node)
    [remark] = noted()
    assert (remark.kind, remark.severity) == ("busy", "info")


def test_a_queue_whose_worker_was_told_to_be_quiet():
    node = alive(queues=[])
    make("ready", age=600)
    [remark] = noted()
    assert (remark.kind, remark.command) == ("starving", f"manage.py jobs tell resume {str(node.pk)[:8]}")
    assert f"{node.hostname} was told to be quiet" in remark.meaning


def test_an_unknown_task_is_named():
    alive()
    make("scheduled", age=-60, task="shop.old", error={"type": "NotRegistered", "message": "no"})
    [remark] = noted()
    assert (remark.kind, remark.about, remark.since) == ("unknown_task", "shop.old", None)
    for name, minutes, known in (("new", 5, []), ("last", 10, ["shop.old"]), ("first", 60, ["shop.old"])):
        at = timezone.now() - minutes * MINUTE
        make_node(hostname=name, version=f"{name}-1", tasks=known, dead_at=at, signed_off=True)
    [remark] = noted()
    assert remark.text.endswith("; the last one that knew it was last, version last-1")
    assert remark.since == pytest.approx(600, abs=30)


def test_an_unknown_task_is_named_however_many_wait_for_their_time(monkeypatch):
    alive()
    monkeypatch.setattr(census, "MOST", 3)
    for _ in range(5):
        make("scheduled", age=-60)
    make("scheduled", task="shop.new", run_at=PARKED, waits_for="task:shop.new")
    [remark] = noted()
    assert (remark.kind, remark.about, remark.number) == ("unknown_task", "shop.new", 1)


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


def test_a_spike_is_cut_and_said():
    for ago in range(2, 50):
        tally(ago * MINUTE, 10)
    tally(51 * MINUTE, 5000)
    chart = Dashboard().chart()
    assert (chart.highest, [*chart.cut.values()]) == (5000, [5000])
    assert chart.top < 20
