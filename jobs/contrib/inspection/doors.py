"""It has no part in the core: pages, commands and other extensions use it. What it asks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Doors:
    """What an extension may have for those who look at jobs. It changes nothing."""

    def waits(self, view: Any) -> Iterable[Any]:
        """What holds a job back (a ``Reason`` each), so that its time and its turn in the queue do not count."""
        return ()

    def other(self, what: Any) -> Any:
        """Something that is no job but has an id like one, found by its id or its row: a ``view.Other``."""
        return None
