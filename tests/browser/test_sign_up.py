"""From the shop's sign-up to the welcome mail, seen from both sides."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from jobs.models import Job
from shop.demo.mail_server import MailServer
from tests.helpers.harness import Worker, wait_ended

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def mail_server():
    server = MailServer({}, hold_at=0)
    server.start()
    yield server
    server.stop()


def test_a_customer_signs_up_and_the_shop_sees_the_job_succeed(visit, mail_server):
    User.objects.create_superuser("grace", password="secret")
    page = visit()
    page.goto("/")
    page.get_by_label("Name").fill("Ada")
    page.get_by_label("E-mail").fill("ada@example.com")
    page.get_by_role("button", name="Sign up").click()
    expect(page.get_by_role("heading", name="Welcome, Ada")).to_be_visible()
    expect(page.get_by_text("not sent yet")).to_be_visible()
    key = page.locator("code").inner_text()
    with Worker(concurrency=1, EMAIL_HOST=mail_server.host, EMAIL_PORT=str(mail_server.port)):
        wait_ended(key)
    page.get_by_role("link", name="Look again").click()
    expect(page.get_by_text("succeeded")).to_be_visible()
    expect(page.get_by_text("sent", exact=True)).to_be_visible()
    assert [recipient for recipient, _ in mail_server.accepted] == ["ada@example.com"]

    page.goto("/admin/")
    page.get_by_label("Username:").fill("grace")
    page.get_by_label("Password:").fill("secret")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("main").get_by_role("link", name="Dashboard").click()
    page.get_by_role("link", name="succeeded").click()
    page.get_by_role("link", name=key[-8:]).click()
    expect(page.locator(".job-state").first).to_have_text("succeeded")
    expect(page.locator(".breadcrumbs")).to_contain_text("send_welcome_email")
    assert Job.objects.get(pk=key).state == "succeeded"
