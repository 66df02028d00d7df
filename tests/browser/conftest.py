"""Debian's Chromium, headless, in front of Django's live server. It dies with this process: its pipe ends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from celery import current_app
from django.contrib.auth.models import Permission, User
from django.test import Client
from playwright.sync_api import expect, sync_playwright

from tests.browser.hands import HANDS
from tests.conftest import not_installed

#: Milliseconds after which whatever is waited for does not come any more.
PATIENCE = 60_000


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


# Not for the session: as long as it lives a loop counts as running in this thread, which other tests must not see.
@pytest.fixture(scope="package")
def chromium():
    path = shutil.which("chromium")
    if path is None:
        not_installed("chromium (Debian: chromium)")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's loop is no reason for Django to refuse this thread its database.
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        expect.set_options(timeout=PATIENCE)
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, live_server, transactional_db):
    """Open a page in a fresh profile, as somebody with these permissions; all are ``"*"``, none is nobody's.

    Whatever was visited asked nobody but the live server, and had nothing to complain about.
    """
    contexts, asked, complaints = [], [], []

    def open_page(*codenames: str, **options):
        context = chromium.new_context(
            base_url=live_server.url, **{"viewport": {"width": 1200, "height": 900}, **options}
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.on("request", lambda request: asked.append(request.url))
        context.on("console", lambda message: complaints.append(f"{message.text} ({message.location['url']})"))
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        if codenames:
            context.add_cookies([{"name": "sessionid", "value": log_in(*codenames), "url": live_server.url}])
        return context.new_page()

    yield open_page
    for context in contexts:
        context.close()
    home = urlsplit(live_server.url).netloc
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {home}
    # Chromium asks for an icon where a page names none, and Django's admin names none.
    assert [complaint for complaint in complaints if "/favicon.ico)" not in complaint] == []


def log_in(*codenames: str) -> str:
    """The session of Ada, who may do this."""
    ada = User.objects.create_user("ada", password="secret", is_staff=True, is_superuser="*" in codenames)
    ada.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(ada)
    return client.cookies["sessionid"].value


@pytest.fixture(params=HANDS, ids=lambda kind: kind.__name__.lower())
def hand(request, visit):
    """Each test once by mouse, once by keyboard alone, and once without JavaScript."""
    return request.param(visit("*", java_script_enabled=request.param.has_script))


@pytest.fixture
def scheduled():
    """What the code says of the schedule."""
    current_app.conf.beat_schedule = {"report": {"task": "tests.tasks.noop", "schedule": 3600.0}}
    yield
    current_app.conf.beat_schedule = {}
