"""Every page is for everybody: seen or heard, in the dark, on a phone, with keys alone, and only to look at.

A page is opened once, and looked at in all these ways.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from jobs.contrib.operator.pages import jobs as many
from tests.browser.axe import violations
from tests.browser.pages import EMPTY, LIST, SHOWN, STEPS, change
from tests.browser.scene import Scene
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

DESK, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
LOOK = ("view_job", "view_node", "view_effect", "view_marker", "view_limit", "view_event", "view_subscription")

#: Whether the page, and not only a part of it, scrolls sideways; then what sticks out.
WIDE = """() => {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    return [`${root.scrollWidth} > ${root.clientWidth}`, ...[...document.querySelectorAll("main *")]
        .filter(each => each.scrollWidth > root.clientWidth || each.getBoundingClientRect().right > root.clientWidth)
        .slice(0, 5).map(each => each.cloneNode().outerHTML)];
}"""

#: What has the focus and does not look like it, null at the page's end.
HIDDEN = """() => {
    const each = document.activeElement;
    if (each === document.body) return null;
    const look = () => {
        const style = getComputedStyle(each);
        const line = style.borderBottomStyle === "none" ? "" : style.borderBottomColor;
        const ring = style.outlineStyle === "none" ? "" : style.outlineWidth;
        return [ring, line, style.boxShadow, style.backgroundColor, style.textDecorationLine].join();
    };
    const focused = look();
    each.blur();
    const plain = look();
    each.focus();
    return focused === plain ? each.outerHTML : "";
}"""

#: Dates that are no <time>; and times that do not tell on hover what they are.
INEXACT = r"""() => {
    const found = [];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const {data, parentElement} = walker.currentNode;
        if (/\d{4}-\d\d-\d\d/.test(data) && !parentElement.closest("time, svg, pre, code, script")) found.push(data);
    }
    const exact = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d$/;
    for (const each of document.querySelectorAll("main time"))
        if (!exact.test(each.title) || each.title !== each.dateTime) found.push(each.outerHTML);
    return found;
}"""


@pytest.fixture(autouse=True)
def _step_by_step(monkeypatch):
    monkeypatch.setattr(many, "BUDGET", 0.0)


def faults(page: Page, name: str) -> list[str]:
    """By day at a desk, and at night on a phone; times that are not exact, and words that are only ours."""
    found = [f"{name}, light: {each}" for each in violations(page)]
    found += [f"{name}, {each}, which is no exact <time>" for each in page.evaluate(INEXACT)]
    text = page.get_by_role("main").inner_text()
    if "a node is one start of a worker" not in text:
        found += [f"{name}, says {word!r}" for word in re.findall(r"(?i)\b(?:nodes?|lease|token|in common)\b", text)]
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    found += [f"{name}, dark, on a phone: {each}" for each in violations(page)]
    found += [f"{name}, on a phone, scrolls sideways: {each}" for each in page.evaluate(WIDE)]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESK)
    return found


@pytest.mark.slow
def test_pages_before_there_is_anything_are_for_everybody(visit):
    page, found = visit("*"), []
    for name, path in EMPTY.items():
        page.goto(path)
        found += faults(page, name)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jobs", "others"])
def test_pages_are_for_everybody(visit, kind):
    Scene()
    page, found = visit("*"), []
    for name, path in SHOWN.items():
        if name.startswith("job, ") == (kind == "jobs"):
            page.goto(path())
            found += faults(page, name)
            assert page.locator("time").count() >= 2 * (kind == "jobs"), name
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_pages_on_the_way_are_for_everybody(visit):
    Scene()
    page, found = visit("*"), []
    for name, go in STEPS.items():
        go(page)
        found += faults(page, name)
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_what_has_the_focus_looks_like_it(visit):
    Scene()
    page = visit("*")
    for name in ("dashboard", "jobs", "job, retried", "effects", "node", "sign-up"):
        page.goto(SHOWN[name]())
        page.add_style_tag(content="* { transition: none !important }")
        stops = 0
        page.keyboard.press("Tab")
        while (hidden := page.evaluate(HIDDEN)) is not None:
            assert hidden == "", name
            stops += 1
            page.keyboard.press("Tab")
        assert stops > 2, name


@pytest.mark.slow
def test_who_may_only_look_sees_no_buttons(visit):
    Scene()
    page = visit(*LOOK)
    for name, path in SHOWN.items():
        if name not in ("sign-up", "customer"):
            page.goto(path())
            main = page.get_by_role("main")
            buttons = {each.inner_text() or each.input_value() for each in main.get_by_role("button").all()}
            assert buttons <= {"Search", "Close", "Filter"}, name
            assert (
                main.locator("select, input[type=checkbox]:not(.jobs-refresh input), input[type=radio]").count() == 0
            ), name


def test_a_phone_shows_rows_and_not_a_header(visit):
    """A quarter of the first screen was header, and an error was as long as it is."""
    error = {"type": "OSError", "message": "Max retries exceeded with url: /v1/invoices " * 9, "traceback": ""}
    job = make("failed", error=error)
    page = visit("*", viewport=PHONE)
    for path in (LIST, change(job)):
        page.goto(path)
        assert page.locator("div.breadcrumbs").bounding_box()["y"] < 80
    page.goto(LIST)
    assert page.locator(".job-fault").bounding_box()["height"] < 45
