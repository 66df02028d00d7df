"""Each broken situation stands first in the dashboard's sentence, with the button or the link that helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from jobs.contrib.operator.statistics import MINUTE
from jobs.contrib.pauses import pauses
from jobs.models import Batch, Cancellation, Instance, Job, Limit, Node, Pause, RateLimiter, Schedule
from tests.browser.pages import DASHBOARD
from tests.browser.rows import TASK, ago, schedule, worker
from tests.contrib.operator.tallies import tally
from tests.helpers.rows import let_heartbeat, make, make_node

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.usefixtures("scheduled")]


# The situations


def copied() -> None:
    worker()
    Instance.objects.update_or_create(pk=1, defaults={"mark": "another"})
    make("ready")


def no_worker_for_a_queue() -> None:
    worker(queues=["mail"])
    make("ready", age=600, queue="slow")


def queue_that_stands_still() -> None:
    worker()
    make("ready", age=600)


def overdue() -> None:
    worker()
    make("scheduled", age=600)


def unknown_task() -> None:
    worker()
    make("scheduled", age=-60, task=TASK, error={"type": "NotRegistered", "message": "no"})


def unknown_since_a_deploy() -> None:
    unknown_task()
    make_node(hostname="bulk@web1", version="shop-2.3", tasks=[TASK], dead_at=ago(720), signed_off=True)


def schedule_error() -> None:
    worker()
    schedule(error="TypeError: no argument")


def schedule_overdue() -> None:
    worker()
    schedule(next_tick=ago(600))


def failing() -> None:
    worker()
    for _ in range(20):
        make("failed", task=TASK, age=300)
    tally(20 * MINUTE, 100, task=TASK)
    tally(5 * MINUTE, 20, task=TASK, state="failed", error="KeyError")


def failing_since_a_deploy() -> None:
    failing()
    let_heartbeat(make_node(hostname="bulk@web2", version="shop-2.4", started_at=ago(600)))


def failed() -> None:
    failing()
    tally(2 * MINUTE, 1, task=TASK)


def dead_worker() -> None:
    worker()
    make_node(hostname="bulk@web1", dead_at=ago(300))


def runs_for_long() -> None:
    make("running", node=worker(), age=7200)


def no_checkpoint() -> None:
    deaf = make("running", node=worker(), age=600)
    Cancellation.objects.create(job=deaf.pk, at=ago(300))


def queue_that_grows() -> None:
    make("running", node=worker(), queue="mail")
    for _ in range(40):
        make("ready", age=300, queue="mail")
    tally(2 * MINUTE, 10, queue="mail")


def paused_queue() -> None:
    worker()
    pauses.pause("mail", "ada", "the mail server is moved")
    make("ready", age=600, queue="mail")


def missed_tick() -> None:
    worker()
    schedule(task="tests.tasks.noop", missed=1, missed_at=ago(60), last_run=ago(4000))


def beat_beside() -> None:
    worker()
    schedule(beat_at=ago(60))


def queue_that_is_behind() -> None:
    make("running", node=worker(), age=1200, queue="mail")
    make("ready", age=1200, queue="mail")


def limit_reached() -> None:
    Limit.objects.create(name="@mail", concurrency=1)
    make("running", node=worker(), queue="mail", queue_slot=1)
    make("ready", age=600, queue="mail")


def rate_reached() -> None:
    worker()
    Limit.objects.create(name=TASK, rate="1/h")
    at = timezone.now().timestamp()
    RateLimiter.objects.create(key=TASK, last_at=at, next_at=at + 3600)
    make("ready", age=600, task=TASK, limit_key=TASK)


def batch_that_waits() -> None:
    worker()
    batch = Batch.objects.create(name="import 7", made_at=ago(3600))
    make("succeeded", batch=batch)
    make("ready", batch=batch)


def paused_schedule() -> None:
    worker()
    schedule(paused_at=ago(60), paused_by="ada")


# What the dashboard says of them, and what helps


@dataclass(frozen=True)
class Situation:
    make: Callable[[], None]
    #: How the sentence goes on after its first words.
    sentence: str
    #: In the first row.
    row: str
    #: The link, and what its page shows.
    link: tuple[str, str] | None = None
    #: The button, and whether it did its work.
    button: tuple[str, Callable[[], bool]] | None = None
    #: Whether it is a problem, or only to know.
    is_problem: bool = True


def retried() -> bool:
    return Job.objects.filter(state="ready", task=TASK).exists()


def killed() -> bool:
    return Job.objects.get().state == "cancelled"


def resumed() -> bool:
    return not (Pause.objects.exists() or Schedule.objects.filter(paused_at__isnull=False).exists())


SHOW = "Show them"
RETRY, KILL = ("Retry these", retried), ("Kill", killed)
OLD = [
    Situation(copied, "1 database is a copy", "marked as another one", (SHOW, "ready")),
    Situation(no_worker_for_a_queue, "no worker for 1 queue", "slow: the oldest ready job has waited", (SHOW, "slow")),
    Situation(queue_that_stands_still, "1 queue stands still", "none of its jobs is running",
              ("Show the workers", "web1")),
    Situation(overdue, "1 job is overdue", "no worker has made it ready", (SHOW, "effect")),
    Situation(unknown_task, "1 job of an unknown task", "waits for a worker that knows", (SHOW, "charge")),
    Situation(schedule_error, "1 schedule makes no job", "TypeError: no argument", ("Show it", "TypeError")),
    Situation(schedule_overdue, "1 schedule is overdue", "schedule report has been due for", ("Show it", "overdue")),
    Situation(failing, "1 task fails every time", "all 20 first attempts of the last 5.",
              (SHOW, "charge"), RETRY),
    Situation(failed, "20 failed this hour", "20 of 121 failed this hour, mostly with KeyError", (SHOW, "charge"),
              RETRY),
    Situation(runs_for_long, "1 job seems stuck", "runs for 2.0 h", ("Show the job", "runs for"), KILL),
    Situation(paused_queue, "1 queue is paused",
              "the queue mail is paused by ada (the mail server is moved); 1 job waits",
              (SHOW, "mail"), ("Resume", resumed)),
    Situation(beat_beside, "celery beat runs beside", "stop it"),
    Situation(queue_that_is_behind, "1 queue is behind", "(1 running)", (SHOW, "mail"), is_problem=False),
]  # fmt: skip
NEW = [
    Situation(limit_reached, "1 limit is reached", "mail: limit reached: 1 run, of 1 at once", (SHOW, "mail"),
              is_problem=False),
    Situation(rate_reached, "1 rate is reached", "charge: rate reached: 1/h; the next job starts in", (SHOW, "charge"),
              is_problem=False),
    Situation(missed_tick, "1 schedule missed its time", "1 missed so far", ("Show it", "missed a tick"),
              ("Run now", lambda: Job.objects.filter(task="tests.tasks.noop").exists())),
    Situation(paused_schedule, "1 schedule is paused", "the schedule report is paused by ada", ("Show it", "paused"),
              ("Resume", resumed), is_problem=False),
    Situation(no_checkpoint, "1 job seems stuck", "was asked to end 5.0 min ago", ("Show the job", "asked"), KILL),
    Situation(dead_worker, "1 worker died", "a worker died: bulk@web1", (SHOW, "bulk@web1"),
              ("Seen", lambda: Node.objects.filter(seen_at__isnull=False).exists())),
    Situation(failing_since_a_deploy, "1 task fails every time", "since the deploy of version shop-2.4",
              (SHOW, "charge"), RETRY),
    Situation(queue_that_grows, "1 queue grows faster than it drains", "4.1 jobs a minute come, and 1.0 are done",
              (SHOW, "mail")),
    Situation(unknown_since_a_deploy, "1 job of an unknown task",
              "the last one that knew it was bulk@web1, version shop-2.3", (SHOW, "charge")),
    Situation(batch_that_waits, "1 batch waits for its last job", "the batch import 7 waits",
              ("Show the job", "import 7"), is_problem=False),
]  # fmt: skip


def first_row(page: Page):
    return page.locator(".jobs-problems > li").first


@pytest.mark.slow
@pytest.mark.parametrize("situation", [*OLD, *NEW], ids=lambda each: each.make.__name__)
def test_it_stands_first_with_what_helps(visit, situation):
    situation.make()
    page = visit("*")
    page.goto(DASHBOARD)
    begins = "1 problem: " if situation.is_problem else "All is well: "
    expect(page.locator(".jobs-sentence")).to_have_text(re.compile("^" + re.escape(begins + situation.sentence)))
    expect(first_row(page)).to_contain_text(situation.row)
    if situation.link is not None:
        label, shows = situation.link
        page.get_by_role("link", name=f"{label}: ").first.click()
        expect(page.locator("#content")).to_contain_text(shows)
        expect(page.get_by_text(re.compile(r"No .* fit\."))).to_have_count(0)
    if situation.button is not None:
        label, has_worked = situation.button
        page.goto(DASHBOARD)
        if (asks := first_row(page).locator("summary")).count():
            asks.click()
        with page.expect_navigation():
            page.get_by_role("button", name=f"{label}: ").first.click()
        assert has_worked()


def test_of_several_the_worst_stands_first_and_a_kind_is_folded(visit):
    for broken in (limit_reached, paused_schedule, paused_queue, dead_worker, failing_since_a_deploy):
        broken()
    for number in range(4):
        make("ready", age=600, queue=f"slow{number}")
    page = visit("*")
    page.goto(DASHBOARD)
    expect(page.locator(".jobs-sentence")).to_have_text(
        "7 problems: no worker for 4 queues · 1 task fails every time · 1 worker died · 1 queue is paused · "
        "1 limit is reached · 1 schedule is paused"
    )
    expect(page.get_by_text("slow3:")).to_be_hidden()
    page.get_by_text("2 more of this kind").click()
    expect(page.get_by_text("slow3:")).to_be_visible()
