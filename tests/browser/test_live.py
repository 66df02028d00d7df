"""Behind an ASGI server pages follow what happens, long before they would ask by themselves."""

from __future__ import annotations

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from jobs.models import Job
from tests.browser.pages import DASHBOARD, LIST, change
from tests.helpers.rows import make
from tests.helpers.uvicorn import Uvicorn, session_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: Milliseconds: well before a poll, also on a busy machine.
SOON = 8_000


@pytest.fixture
def page(chromium, transactional_db):
    server = Uvicorn()
    context = chromium.new_context(base_url=server.url)
    context.add_cookies([{"name": "sessionid", "value": session_of("view_job"), "url": server.url}])
    yield context.new_page()
    context.close()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["dashboard", "list", "job"])
def test_a_page_follows_what_happens(page, where):
    job = make("running")
    page.goto({"dashboard": DASHBOARD, "list": LIST, "job": change(job)}[where])
    expect(page.get_by_label("Follow what happens")).to_be_checked()
    if where == "job":
        expect(page.locator(".job-facts .job-running")).to_be_visible()
    Job.objects.filter(pk=job.pk).update(state="succeeded", finished_at=timezone.now())
    if where == "dashboard":
        expect(page.locator(".jobs-tile.job-running strong")).to_have_text("0", timeout=SOON)
    else:
        expect(page.locator(".job-state.job-succeeded").first).to_be_visible(timeout=SOON)


def test_a_page_that_cannot_be_read_again_says_so(page):
    """Here because the login has expired. Django then answers with the page to log in, which is no error."""
    make("running")
    page.goto(DASHBOARD)
    told = page.get_by_text("Not up to date")
    expect(told).to_have_count(0)
    page.context.clear_cookies()
    make("ready")
    expect(told).to_be_visible(timeout=2 * SOON)
    page.context.add_cookies([{"name": "sessionid", "value": session_of("view_job"), "url": page.url}])
    expect(told).to_have_count(0, timeout=2 * SOON)
