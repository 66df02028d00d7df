"""What follows what, in a browser: read by a screen reader, and followed with the keyboard."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.axe import violations
from tests.browser.pages import change
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def test_the_boxes_are_links_that_the_keyboard_follows(visit):
    parent = make("succeeded", task="shop.tasks.nightly")
    children = [make(s, task=f"shop.tasks.{s}", parent_id=parent.pk, root=parent.pk) for s in ("succeeded", "failed")]
    page = visit("view_job")
    page.goto(change(parent))
    graph = page.get_by_role("group", name="Jobs, and what follows each")
    expect(graph.get_by_role("link")).to_have_count(2)
    assert violations(page) == []
    graph.get_by_role("link", name="failed: failed").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{change(children[1])}")
