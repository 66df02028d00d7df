"""The pictures of the documentation: ``pytest tests/browser/test_screenshots.py --screenshots docs/images``."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import current_app
from django.urls import reverse

from tests.browser.pages import DASHBOARD, EFFECTS, EVENTS, LIMITS, LIST, MARKERS, NODES, SHOWN, SUBSCRIPTIONS, change
from tests.browser.scene import CHARGE, Scene

pytestmark = pytest.mark.django_db(transaction=True)

#: Bytes.
LARGEST = 160_000

#: What the name of a picture ends with, and how the page is looked at.
WAYS = {
    "": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "-dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "-phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}


@pytest.fixture
def directory(request, tmp_path) -> Path:
    return Path(request.config.option.screenshots or tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way or "-light")
def test_pictures_of_all_pages(visit, directory, way, monkeypatch):
    scene = Scene()
    current_app.loader.import_default_modules()
    # The limits of these tests' own tasks are none of the shop's.
    for name in [name for name in current_app.tasks if name.startswith("tests.")]:
        monkeypatch.delitem(current_app.tasks, name)
    pages = {
        "dashboard": DASHBOARD,
        "task": f"{reverse('admin:jobs_task')}?name={CHARGE}",
        "queue": f"{reverse('admin:jobs_queue')}?name=payments",
        "jobs": LIST,
        "job": change(scene.job),
        "history": f"{change(scene.job)}#job-history",
        "workers": NODES,
        "worker": change(scene.nodes[0]),
        "schedules": reverse("admin:jobs_schedule_changelist"),
        "schedule": reverse("admin:jobs_schedule_change", args=["clean up"]),
        "batches": reverse("admin:jobs_batch_changelist"),
        "batch": reverse("admin:jobs_batch_change", args=[scene.batch.pk]),
        "limits": LIMITS,
        "effects": EFFECTS,
        "effect": SHOWN["effect"](),
        "markers": MARKERS,
        "events": EVENTS,
        "event": SHOWN["event"](),
        "subscriptions": SUBSCRIPTIONS,
    }
    page = visit("*", **WAYS[way])
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    for name, path in pages.items():
        page.goto(path)
        picture = directory / f"{name}{way}.png"
        page.screenshot(path=picture)
        assert 8_000 < picture.stat().st_size < LARGEST, name


@pytest.mark.slow
def test_pictures_of_parts_of_pages(visit, directory):
    scene = Scene()
    first = scene.more()
    page = visit("*", color_scheme="light", viewport={"width": 1040, "height": 800})
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    for name, path, part in (
        ("calls", change(first), "section[aria-labelledby=job-related]"),
        ("log", change(scene.job), "section[aria-labelledby=job-log]"),
        ("filters", f"{LIST}?state__exact=failed", "details[data-filter-title='saved filters']"),
        ("replay", change(scene.job), "#content"),
    ):
        page.goto(path)
        if name == "replay":
            page.get_by_role("button", name="What would it do?").click()
            page.get_by_text("It would succeed.").wait_for()
        picture = directory / f"{name}.png"
        page.locator(part).screenshot(path=picture)
        assert 2_000 < picture.stat().st_size < LARGEST, name
