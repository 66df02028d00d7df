"""The part of the progress in the core, and of the cursor in a job."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Progress(Extension):
    def ready(self) -> None:
        from jobs.models import above

        above["save_cursor"] = _save_cursor

    @property
    def progress(self) -> Any:
        from jobs.contrib.progress import said

        return said


def _save_cursor(*given: Any) -> None:
    from jobs.contrib.progress.cursor import save_cursor

    save_cursor(*given)
