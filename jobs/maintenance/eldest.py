"""What one worker does for all of them, the oldest one does."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from jobs.models import Node


def is_eldest(node: Callable[[], uuid.UUID] | None, using: str) -> bool:
    """Whether the node has lived longest. Without one (None) somebody wants it done here."""
    if node is None:
        return True
    living = Node.objects.using(using).filter(dead_at=None).order_by("started_at", "pk")
    return bool(living.values_list("pk", flat=True).first() == node())
