"""What picks up whatever fell: the clock, rescue, prune, the schedule and the count of what ended.

Each has a ``run_once() -> dict[str, int]`` (the clock: ``tick()``) that says what it did. Any number of them may run
side by side, beside every worker and as ``manage.py jobs rescue|prune``.
"""

import uuid
from collections.abc import Callable

from jobs.models import Node


def is_eldest(node: Callable[[], uuid.UUID] | None, using: str) -> bool:
    """Whether the node is the oldest that lives: it does what one does for all. None: somebody wants it done here."""
    if node is None:
        return True
    living = Node.objects.using(using).filter(dead_at=None).order_by("started_at", "pk")
    return bool(living.values_list("pk", flat=True).first() == node())
