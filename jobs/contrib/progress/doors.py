"""The part of the progress in the core."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Progress(Extension):
    @property
    def progress(self) -> Any:
        from jobs.contrib.progress import said

        return said
