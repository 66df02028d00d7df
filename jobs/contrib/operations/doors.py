"""The part of the operations in the core: what people did to a job goes with it. What they ask other extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class Operations(Extension):
    def deleting(self, jobs: Any, using: str, of: Any) -> None:
        from jobs.contrib.operations.models import Action

        Action.objects.using(using).filter(of("job"))._raw_delete(using)


class Doors:
    """What an extension may have for the operations."""

    def selects(self) -> Mapping[str, Any]:
        """More fields that people can select jobs by: a ``selection.Field`` by its name."""
        return {}

    def again(self, jobs: Any, using: str) -> Mapping[str, Any]:
        """In the transaction in which an ended job (a queryset) is let run again: return more columns for its row."""
        return {}
