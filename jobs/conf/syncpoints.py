"""Named points at which a test can wait, or end the process. In production each is one comparison with None."""

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Say that execution is at ``point``."""
    if _hook is not None:
        _hook(point)


def is_armed(point: str) -> bool:
    """Whether a test waits for this point: then two steps that are else one message to the database are separate."""
    return _hook is not None and getattr(_hook, "point", point) == point


def arm(hook: Callable[[str], None] | None) -> None:
    """Call ``hook(point)`` at every point from now on; None disarms."""
    global _hook
    _hook = hook
