"""The core does not need it, so it is an extension. It has no part in a job: a project imports it in its tests."""

from __future__ import annotations

from typing import Any


class Doors:
    """What an extension may have for tests."""

    def idle(self, app: Any, using: str, clock: Any) -> bool:
        """``run_jobs()`` finds no job: do what threads and ticks would do. True: there may be one now.

        ``clock`` says what time it is there, and is told when something comes due (``testing/inline.py``).
        """
        return False
