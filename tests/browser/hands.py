"""How somebody uses a page: each has the same five gestures."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

#: Whether it comes before what has the focus.
BEFORE = """each => document.activeElement !== document.body
    && !!(each.compareDocumentPosition(document.activeElement) & Node.DOCUMENT_POSITION_FOLLOWING)"""


class Mouse:
    has_script = True

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, target: Locator) -> None:
        """A button or a link."""
        target.click()

    def tick(self, target: Locator) -> None:
        target.click()

    def pick(self, target: Locator) -> None:
        """A radio button."""
        target.click()

    def choose(self, target: Locator, label: str) -> None:
        """An option of a select."""
        target.select_option(label=label)

    def write(self, target: Locator, text: str) -> None:
        target.click()
        self.page.keyboard.type(text)


class NoScript(Mouse):
    """By mouse, in a browser without JavaScript."""

    has_script = False


class Keyboard(Mouse):
    """Nothing but keys: what Tab does not reach is not there."""

    def reach(self, *targets: Locator) -> None:
        """Tab to one of them, the shorter way."""
        found = [target.element_handle() for target in targets]
        key = "Shift+Tab" if found[0].evaluate(BEFORE) else "Tab"
        for _ in range(300):
            if any(each.evaluate("each => each === document.activeElement") for each in found):
                return
            self.page.keyboard.press(key)
        raise AssertionError(f"{key} does not reach {targets[0]}")

    def press(self, target: Locator) -> None:
        self.reach(target)
        self.page.keyboard.press("Enter")

    def tick(self, target: Locator) -> None:
        self.reach(target)
        self.page.keyboard.press("Space")

    def pick(self, target: Locator) -> None:
        # Tab goes to the one that is picked, and arrows to the others.
        group = self.page.locator(f"input[type=radio][name={target.get_attribute('name')}]")
        self.reach(*group.all())
        while not target.is_checked():
            self.page.keyboard.press("ArrowDown")

    def choose(self, target: Locator, label: str) -> None:
        self.reach(target)
        for _ in target.locator("option").all():
            if target.evaluate("each => each.selectedOptions[0].label") == label:
                return
            self.page.keyboard.press("ArrowDown")
        raise AssertionError(f"no option {label}")

    def write(self, target: Locator, text: str) -> None:
        self.reach(target)
        self.page.keyboard.type(text)


HANDS = (Mouse, Keyboard, NoScript)
