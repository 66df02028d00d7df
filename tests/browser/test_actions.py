"""Every action of the admin, as somebody does it: with a mouse, with keys alone, without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import SimpleNamespace

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.inspection.counts import paused
from jobs.contrib.operator.pages import jobs as many
from jobs.lifecycle.transitions import NEVER
from jobs.models import Action, Cancellation, Effect, Job, Marker, Pause
from tests import tasks
from tests.browser.axe import violations
from tests.browser.pages import DASHBOARD, EFFECTS, LIMITS, LIST, RUN, change, said
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@dataclass(frozen=True)
class Deed:
    #: What the button and the list's action are called.
    label: str
    #: Of a job to which it may be done.
    state: str
    #: What is in the row afterwards; None: there is no row any more.
    after: dict[str, object] | None
    #: As in "2 jobs retried".
    participle: str
    #: What else has to be written, by its label.
    fields: dict[str, str] = field(default_factory=dict)
    #: On the page of a job it is folded up.
    is_apart: bool = False
    #: What the history of the job says; None: it goes with the job.
    why: str | None = "it is fixed"

    def was_done_to(self, job: Job) -> bool:
        rows = Job.objects.filter(pk=job.pk)
        return not rows.exists() if self.after is None else rows.filter(**self.after).exists()


DEEDS = [
    Deed("Retry", "failed", {"state": "ready"}, "retried"),
    Deed("Run now", "scheduled", {"state": "ready"}, "made due"),
    Deed("Cancel", "ready", {"state": "cancelled"}, "cancelled"),
    Deed("Kill", "running", {"state": "cancelled", "error__type": "Killed"}, "killed", {}, True),
    Deed(
        "Change queue",
        "ready",
        {"queue": "mail"},
        "moved to mail",
        {"To which queue:": "mail"},
        True,
        "mail: it is fixed",
    ),
    Deed(
        "Change priority", "scheduled", {"priority": 7}, "given priority 7", {"Priority": "7"}, True, "7: it is fixed"
    ),
    Deed("Delete", "failed", None, "deleted", {}, True, None),
]


@pytest.fixture(params=DEEDS, ids=lambda deed: deed.label)
def deed(request):
    return request.param


def fill(hand, deed: Deed, form) -> None:
    for label, text in {**deed.fields, "Why (for the history):": "it is fixed"}.items():
        hand.write(form.get_by_label(label), text)
    hand.press(form.get_by_role("button", name=deed.label, exact=True))


def form_of(hand, deed: Deed):
    """On the page of a job."""
    if not deed.is_apart:
        return hand.page.locator(".job-operate > form")
    folded = hand.page.locator(".job-operate details").filter(has_text=deed.label)
    hand.press(folded.locator("summary"))
    return folded


@pytest.mark.slow
def test_on_the_page_of_a_job(hand, deed):
    job, other = make(deed.state), make(deed.state)
    hand.page.goto(change(job))
    fill(hand, deed, form_of(hand, deed))
    said(hand).to_contain_text(f"{deed.participle} (was {deed.state})")
    if deed.after:
        expect(hand.page.get_by_text(f"ada · {deed.why}")).to_be_visible()
        expect(hand.page.locator(".job-state").first).to_have_text(Job.objects.get(pk=job.pk).state)
    assert deed.was_done_to(job)
    assert not deed.was_done_to(other)
    told = [(row.job, row.by, row.why) for row in Action.objects.all()]
    assert told == ([] if deed.why is None else [(job.pk, "ada", deed.why)])


def test_a_running_job_is_asked_to_end(hand):
    job = make("running")
    hand.page.goto(change(job))
    hand.press(hand.page.get_by_role("button", name="Cancel", exact=True))
    said(hand).to_contain_text("asked to end")
    assert Cancellation.objects.get().job == job.pk


def choose(hand, label: str, *keys: object) -> None:
    """On a list."""
    for key in keys:
        hand.tick(hand.page.locator(f'input[name=_selected_action][value="{key}"]'))
    hand.choose(hand.page.get_by_label("Action:"), label)
    hand.press(hand.page.locator(RUN))


@pytest.mark.slow
def test_on_the_list_for_those_that_are_chosen(hand, deed):
    other, *chosen = [make(deed.state) for _ in range(3)]
    hand.page.goto(LIST)
    choose(hand, deed.label, *(job.pk for job in chosen))
    expect(hand.page.get_by_label("The 2 that are chosen")).to_be_checked()
    fill(hand, deed, hand.page)
    said(hand).to_have_text(f"2 jobs {deed.participle}")
    assert all(deed.was_done_to(job) for job in chosen)
    assert not deed.was_done_to(other)


@pytest.mark.slow
def test_on_the_list_for_all_that_match_step_by_step(hand, monkeypatch):
    # By a clock that goes on by a second with each job.
    monkeypatch.setattr(many, "time", SimpleNamespace(monotonic=count().__next__))
    monkeypatch.setattr(many, "BUDGET", 80)
    tasks.noop.delay_many([()] * 300)
    other = make("scheduled")
    hand.page.goto(f"{LIST}?state__exact=ready")
    choose(hand, "Cancel", Job.objects.filter(state="ready").order_by("-pk")[0].pk)
    hand.pick(hand.page.get_by_label("All that match the filters of the list: 300 (ready)"))
    steps = []
    hand.page.on("request", lambda request: steps.append(request.url) if "/operate/" in request.url else None)
    hand.press(hand.page.get_by_role("button", name="Cancel", exact=True))
    if not hand.has_script:
        go_on = hand.page.get_by_role("button", name="Go on")
        while go_on.or_(hand.page.locator(".messagelist")).first.evaluate("each => each.localName") == "input":
            hand.press(go_on)
    said(hand).to_have_text("300 jobs cancelled")
    assert len(steps) > 2
    assert set(Job.objects.exclude(pk=other.pk).values_list("state", flat=True)) == {"cancelled"}
    assert Job.objects.get(pk=other.pk).state == "scheduled"
    assert Action.objects.count() == 300


def test_back_from_the_confirmation_nothing_is_done(hand):
    job = make("failed")
    hand.page.goto(f"{LIST}?state__exact=failed")
    choose(hand, "Retry", job.pk)
    hand.press(hand.page.get_by_role("link", name="No, take me back"))
    expect(hand.page).to_have_url(f"{LIST}?state__exact=failed")
    assert Job.objects.get().state == "failed"


def test_a_queue_is_paused_and_resumed(hand):
    make("ready", queue="mail")
    hand.page.goto(DASHBOARD)
    hand.press(hand.page.get_by_role("button", name="Pause mail"))
    said(hand).to_have_text("Paused: mail")
    assert Pause.objects.get().by == "ada"
    hand.press(hand.page.get_by_role("button", name="Resume mail"))
    said(hand).to_have_text("Resumed: mail")
    expect(hand.page.get_by_role("button", name="Pause mail")).to_be_visible()
    assert paused() == {}


def parked(key: str) -> Effect:
    return Effect.objects.create(name="charge", key=key, job=make("failed").pk, lease=1, state="parked")


def test_what_became_of_an_external_call(hand):
    one, other = parked("1"), parked("2")
    hand.page.goto(f"{EFFECTS}?status=unsettled")
    hand.write(hand.page.get_by_label("Answer (JSON):"), '{"id": "ch_1"}')
    choose(hand, "It happened: the job makes no call", one.pk)
    said(hand).to_contain_text("Noted: charge:1.")
    choose(hand, "It did not happen: the job makes the call", other.pk)
    said(hand).to_contain_text("Noted: charge:2.")
    expect(hand.page.locator(".job-pages")).to_contain_text("No external effects fit.")
    one.refresh_from_db()
    assert (one.state, one.answer) == ("sent", {"id": "ch_1"})
    assert not Effect.objects.filter(pk=other.pk, state="parked").exists()


def test_what_became_of_an_external_call_on_the_page_of_its_job(hand):
    row = parked("1")
    hand.page.goto(change(Job.objects.get()))
    hand.write(hand.page.get_by_label("Answer (JSON):"), '{"id": "ch_1"}')
    hand.press(hand.page.get_by_role("button", name="It happened"))
    said(hand).to_contain_text("Noted: charge:1.")
    row.refresh_from_db()
    assert (row.state, row.answer) == ("sent", {"id": "ch_1"})


@pytest.mark.slow
def test_the_list_is_narrowed_and_turned_over(hand):
    wanted = [make("failed", queue="mail") for _ in range(51)]
    for _ in range(3):
        make("failed")
    hand.page.goto(LIST)
    hand.write(hand.page.get_by_label("Queue", exact=True), "mail")
    hand.press(hand.page.get_by_role("button", name="Filter", exact=True))
    rows = hand.page.locator("#result_list tbody tr")
    expect(rows).to_have_count(50)
    hand.press(hand.page.get_by_role("link", name="Next page"))
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(str(wanted[0].pk)[-8:])
    expect(hand.page.get_by_label("Queue", exact=True)).to_have_value("mail")


def test_a_marker_is_forgotten(hand):
    marker = Marker.objects.create(key="welcome:1", kind="task", job=make("succeeded").pk)
    hand.page.goto(change(marker))
    hand.press(hand.page.get_by_role("link", name="Delete"))
    hand.press(hand.page.get_by_role("button", name="Yes, I"))
    said(hand).to_contain_text("deleted successfully")
    assert not Marker.objects.exists()


@pytest.mark.slow
def test_from_the_dashboard_to_a_worker_and_to_its_job(hand):
    job = make("running")
    hand.page.goto(DASHBOARD)
    hand.press(hand.page.get_by_role("link", name="running"))
    hand.press(hand.page.get_by_role("link", name=str(job.pk)[-8:]))
    hand.press(hand.page.get_by_role("link", name="web1"))
    expect(hand.page.locator(".field-pid")).to_contain_text("4711")


def test_set_a_limit_and_remove_it(hand):
    page = hand.page
    page.goto(LIMITS)
    hand.write(page.get_by_label("name"), "mail")
    hand.write(page.get_by_label("at once"), "3")
    hand.press(page.get_by_role("button", name="Set"))
    said(hand).to_contain_text("Set: @mail.")
    assert not hand.has_script or violations(page) == []
    hand.press(page.get_by_role("button", name="Remove: mail"))
    said(hand).to_contain_text("Removed: @mail")


def test_a_signal_is_sent_on_the_page_of_the_job_that_waits(hand):
    waits = {"run_at": NEVER, "lease": 1, "started_at": timezone.now(), "waits_for": "signal:approved:42"}
    job = make("scheduled", age=60, task="shop.tasks.onboard", **waits)
    begun = timezone.now() - timedelta(minutes=1)
    Step.objects.create(
        job=job.pk,
        name="reserve",
        kind="step",
        state="done",
        lease=1,
        made_at=begun,
        done_at=timezone.now(),
        result=[1],
    )
    Step.objects.create(job=job.pk, name="wait", kind="wait", state="waiting", lease=1, key="approved:42")
    hand.page.goto(change(job))
    steps = hand.page.get_by_role("region", name="Steps")
    expect(steps.get_by_role("row")).to_have_count(3)
    expect(steps.get_by_role("row").last).to_contain_text("waits for the signal approved:42")
    # The first step took all of the time, and the wait has only begun.
    first, last = (steps.locator("rect").nth(place).bounding_box() for place in (0, 1))
    assert first["width"] > 5 * last["width"]
    assert last["x"] > first["x"]
    if hand.has_script:
        assert violations(hand.page) == []
    hand.write(hand.page.get_by_label("Payload (JSON):"), '{"by": "ada"}')
    hand.press(hand.page.get_by_role("button", name="Send the signal"))
    said(hand).to_have_text("Sent: the job goes on.")
    signal = Signal.objects.get()
    assert (signal.key, signal.payload) == ("approved:42", {"by": "ada"})
    expect(hand.page.get_by_role("button", name="Send the signal")).to_have_count(0)
    hand.page.goto(change(signal))
    if hand.has_script:
        assert violations(hand.page) == []
