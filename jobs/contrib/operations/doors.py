"""It has no part in the core: pages, commands and other extensions use them. What they ask other extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Doors:
    """What an extension may have for the operations."""

    def selects(self) -> Mapping[str, Any]:
        """More fields that people can select jobs by: a ``selection.Field`` by its name."""
        return {}

    def again(self, jobs: Any, using: str) -> Mapping[str, Any]:
        """In the transaction in which an ended job (a queryset) is let run again: return more columns for its row."""
        return {}
