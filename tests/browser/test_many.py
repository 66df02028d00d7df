"""A long history: the pages come, and lead on."""

from __future__ import annotations

import datetime
import uuid

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from jobs.models import Job
from jobs.models.fields import first_id
from tests.browser.pages import DASHBOARD, LIST, RUN
from tests.helpers.rows import ERROR

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(300)]

MANY = 100_000


@pytest.fixture
def history(transactional_db) -> None:
    now = timezone.now()

    def row(number: int) -> Job:
        at = now - datetime.timedelta(seconds=number)
        key = uuid.UUID(int=first_id(at).int | number)
        job = Job(id=key, task=f"shop.tasks.task{number % 7}", queue=f"queue{number % 3}", run_at=at)
        match number % 20:
            case 0:
                job.state = "scheduled"
            case 1 | 2:
                job.state = "ready"
            case 3:
                job.state, job.finished_at, job.error = "failed", at, ERROR
            case _:
                job.state, job.finished_at = "succeeded", at
        return job

    Job.objects.bulk_create(map(row, range(MANY)), batch_size=2000)


def test_pages_of_a_hundred_thousand_jobs(visit, history):
    page = visit("*")
    rows = page.locator("#result_list tbody tr")
    page.goto(LIST)
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="Previous page")).to_be_visible()
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="failed (").click()
    expect(page).to_have_url(f"{LIST}?state__exact=failed")
    expect(rows).to_have_count(50)
    assert set(page.locator("#result_list .job-state").all_inner_texts()) == {"failed"}
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="Previous page")).to_be_visible()
    page.locator("#searchbar").fill("shop.tasks.task3")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("cell", name="task3").first).to_be_visible()
    page.goto(DASHBOARD)
    expect(page.locator(".jobs-tile.job-ready strong")).to_have_text(str(MANY // 10))
    expect(page.locator(".jobs-tile.job-scheduled strong")).to_have_text(str(MANY // 20))
    page.get_by_role("link", name="last week").click()
    page.locator("a.jobs-tile.job-ready").click()
    expect(rows).to_have_count(50)
    page.locator("input[name=_selected_action]").first.check()
    page.get_by_label("Action:").select_option(label="Cancel")
    page.locator(RUN).click()
    expect(page.get_by_label(f"All that match the filters of the list: {MANY // 10} (ready)")).to_be_visible()
