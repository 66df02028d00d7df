"""The part of pruning in the core, and what it asks other extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jobs.doors import Extension, Thread


class Pruning(Extension):
    def threads(self) -> Iterable[Thread]:
        from jobs.contrib.pruning.worker import run

        return [run]


class Doors:
    """What an extension keeps, and deletes."""

    #: Which ended jobs must not be deleted yet: a condition, by the database's alias; and the sentence that says why.
    needed: tuple[Callable[[str], Any], Any]

    def deleting(self, jobs: Any, using: str, of: Callable[[str], Any]) -> None:
        """Ended jobs (a queryset) are about to be deleted, in that transaction.

        ``of("job")`` is the condition that this column has the id of one of them.
        """

    def prune(self, using: str, budget: float) -> Mapping[str, int] | None:
        """Delete what is old, in ``budget`` seconds; one worker does it. Says what and how many (``prune --json``)."""
