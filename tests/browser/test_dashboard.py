"""The dashboard renews itself, and takes nothing out of anybody's hands."""

from __future__ import annotations

import datetime
import uuid

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from jobs.models import Job
from tests.browser.pages import DASHBOARD
from tests.browser.scene import IMPORT, Scene
from tests.helpers.rows import let_heartbeat, make, make_node

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.slow
def test_it_renews_itself_unless_somebody_is_at_a_control(visit):
    make("ready", queue="mail")
    page, asked = visit("*"), []
    ready = page.locator(".jobs-tile.job-ready strong")
    page.clock.install()
    page.goto(DASHBOARD)
    page.on("request", lambda request: asked.append(request.url))
    expect(ready).to_have_text("1")

    page.get_by_role("heading", name="Queues").click()
    make("ready")
    page.clock.run_for(10_000)
    expect(ready).to_have_text("2")
    assert len(asked) == 1

    page.keyboard.press("Tab")
    page.get_by_role("button", name="Pause mail").focus()
    make("ready")
    page.clock.run_for(30_000)
    expect(page.get_by_role("button", name="Pause mail")).to_be_focused()
    assert len(asked) == 1

    page.locator(":focus").blur()
    page.clock.run_for(10_000)
    expect(ready).to_have_text("3")


#: Is it healthy, what is stuck, what fails most, who paused mail, and when does the report run next?
ANSWERS = {
    "en": (
        "6 problems: 2 external calls may have been made · 114 failed this hour · 1 job seems stuck",
        "shop.tasks.import_orders: runs for 2.0 h",
        "shop.tasks.send_welcome_email: 75 of 3630 failed this hour",
        "the queue mail is paused by ada (the mail server is moved); 2 jobs wait",
        "report in 7.2 h",
    ),
    "de": (
        "6 Probleme: 2 externe Aufrufe geschahen vielleicht · 114 in dieser Stunde fehlgeschlagen · "
        "1 Job scheint zu hängen",
        "shop.tasks.import_orders: läuft seit 2,0 h",
        "shop.tasks.send_welcome_email: 75 von 3630",
        "die Queue mail ist angehalten von ada (the mail server is moved); 2 Jobs warten",
        "report in 7,2 h",
    ),
}


@pytest.mark.parametrize("language", ANSWERS)
def test_the_first_screen_answers_what_people_ask(visit, settings, language):
    settings.LANGUAGE_CODE = language
    page = visit("*", viewport={"width": 1280, "height": 800})
    # After the browser's start: a queue whose jobs wait meanwhile would be one more problem.
    make("running", node=Scene().nodes[0], age=7200, task=IMPORT)
    page.goto(DASHBOARD)
    parts = page.locator(".jobs-sentence, .jobs-problems li strong, .jobs-next li")
    for answer in ANSWERS[language]:
        expect(parts.filter(has_text=answer)).to_be_in_viewport(ratio=1)


def test_it_says_what_verify_says(visit):
    page = visit("*")
    page.goto(DASHBOARD)
    status = page.locator("#jobs-verify [role=status]")
    expect(status).to_contain_text("0 violations.")
    make("running", age=3600)
    Job.objects.update(node_id=uuid.uuid4())
    # A worker that could give it back.
    let_heartbeat(make_node(started_at=timezone.now() - datetime.timedelta(hours=1), concurrency=1))
    page.reload()
    expect(status).to_contain_text("1 violation.")
