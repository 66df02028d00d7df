"""The dashboard renews itself, and takes nothing out of anybody's hands."""

from __future__ import annotations

import uuid

import pytest
from playwright.sync_api import expect

from jobs.models import Job
from tests.browser.pages import DASHBOARD
from tests.rows import make

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_it_says_what_verify_says(visit):
    page = visit("*")
    page.goto(DASHBOARD)
    status = page.locator("#jobs-verify [role=status]")
    expect(status).to_contain_text("0 violations.")
    make("running", age=3600)
    Job.objects.update(node_id=uuid.uuid4())
    page.reload()
    expect(status).to_contain_text("1 violation.")
