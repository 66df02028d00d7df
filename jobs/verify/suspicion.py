"""Rows that should have recovered by now: watched for as long as recovery may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from jobs.conf import conf
from jobs.verify.rule import Rows, Rule, View

#: Seconds between two looks.
STEP = 1.0


class Suspicion:
    """The rows of one database that break a rule with a bound, by the times that are written in them.

    Right after an outage all times are old, and nothing is broken. So they are violations only if nobody does
    anything about them while a worker could.
    """

    def __init__(self, rule: Rule, alias: str, view: View) -> None:
        assert rule.bound is not None
        self.rule = rule
        self.alias = alias
        self.bound = rule.bound()
        broken = self._broken(view)
        #: A sample of them, with what would change about them.
        self.rows: dict[Hashable, tuple[Any, ...]] = broken.first(conf().BATCH) if broken is not None else {}
        self.count = len(self.rows)
        if broken is not None and self.count == conf().BATCH:
            self.count = broken.count()
        self._untouched = True
        self._view = view

    def look(self, view: View) -> None:
        """Forget the rows that something was done about."""
        broken = self._broken(view)
        now = broken.among(self.rows).first(len(self.rows)) if broken is not None else {}
        still = {key: version for key, version in self.rows.items() if now.get(key) == version}
        self._untouched = self._untouched and len(still) == len(self.rows)
        self.rows = still
        self._view = view

    @property
    def violations(self) -> int:
        if self.count <= conf().BATCH:
            return len(self.rows)
        # More than one round of maintenance: the last ones wait for the first, as long as these move on.
        return self.count if self._untouched else 0

    @property
    def waiting(self) -> int:
        """All rows that wait to be put right, by the last look."""
        return self.rule.waiting(self._view, self.alias).count() if self.rule.waiting is not None else 0

    def _broken(self, view: View) -> Rows | None:
        """None: nobody can be blamed. There has to be a worker, and a way for it to put things right."""
        if view.worked_for < self.bound:
            return None
        broken = self.rule.broken(view, self.alias)
        if not broken.first(1):
            return broken
        return broken if view.is_writable(self.alias) else None


def watch(suspicions: list[Suspicion], look_again: Callable[[], View]) -> None:
    """Look at the rows again and again, until something was done about them or their bound is over."""
    began = time.monotonic()
    while open_ones := [each for each in suspicions if each.rows and time.monotonic() - began < each.bound]:
        time.sleep(STEP)
        view = look_again()
        for each in open_ones:
            each.look(view)
