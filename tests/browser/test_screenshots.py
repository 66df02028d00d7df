"""The pictures of the documentation: ``pytest tests/browser/test_screenshots.py --screenshots docs/images``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.pages import DASHBOARD, LIST, change
from tests.browser.scene import Scene

pytestmark = pytest.mark.django_db(transaction=True)

#: Bytes.
LARGEST = 120_000


@pytest.fixture
def directory(request, tmp_path) -> Path:
    return Path(request.config.option.screenshots or tmp_path)


def test_pictures_of_the_readme(visit, directory):
    job = Scene().job
    page = visit("*")
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    sizes = {"dashboard": (1000, 900), "job": (1000, 740), "jobs": (1080, 720)}
    for name, path in {"dashboard": DASHBOARD, "job": change(job), "jobs": LIST}.items():
        page.set_viewport_size(dict(zip(("width", "height"), sizes[name], strict=True)))
        page.goto(path)
        picture = directory / f"{name}.png"
        page.screenshot(path=picture)
        assert 10_000 < picture.stat().st_size < LARGEST, name
