"""From the shop's sign-up to the welcome mail, seen from both sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from jobs.board import is_alive
from jobs.models import Job
from shop.demo.mail_server import MailServer
from tests.harness import Worker, wait_ended
from tests.servers import family, wait_for

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
    page.get_by_role("link", name=key[:8]).click()
    expect(page.locator(".job-state").first).to_have_text("succeeded")
    expect(page.locator(".field-task")).to_contain_text("shop.tasks.send_welcome_email")
    assert Job.objects.get(pk=key).state == "succeeded"


# Nobody tells it to end.
OPENS = """
import shutil, signal
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
    print("open", flush=True)
    signal.pause()
"""


def test_the_browser_dies_with_the_tests(chromium):
    process = subprocess.Popen([sys.executable, "-c", OPENS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline()
        pids = family(process.pid)
        assert any(b"chromium" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids), 20, "Chromium is gone")
