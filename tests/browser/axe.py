"""What axe-core finds wrong with a page that is ours."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

#: Markup of Django's own admin, by the rule that it breaks.
DJANGOS: dict[str, str] = {
    # Links of the breadcrumbs are not underlined.
    "link-in-text-block": ".breadcrumbs a",
    # The label of the search field is a picture (with an alternative text).
    "label-title-only": "#searchbar",
}

SCRIPT = Axe().axe_script


def violations(page: Page) -> list[str]:
    """The serious and the critical ones."""
    # Colours that still change are nobody's.
    page.evaluate("Promise.allSettled(document.getAnimations().map(each => each.finished))")
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT)
    # What is right is a lot, and not asked for.
    found = page.evaluate("axe.run({resultTypes: ['violations']}).then(results => results.violations)")
    return [
        f"{rule['id']} ({rule['impact']}): {node['target'][0]} {node['html'][:300]} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
        if not _is_djangos(page, rule["id"], node["target"][0])
    ]


def _is_djangos(page: Page, rule: str, target: str) -> bool:
    return rule in DJANGOS and page.locator(target).evaluate("(each, theirs) => each.matches(theirs)", DJANGOS[rule])
