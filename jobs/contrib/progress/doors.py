"""What of the progress takes part in the core."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from jobs.doors import Extension


class Progress(Extension):
    def say(self, run: Any, done: float, total: float | None, text: str) -> None:
        from jobs.contrib.progress import said

        said.say(run, done, total, text)

    def said(self, jobs: Iterable[Any], is_veiled: bool) -> dict[uuid.UUID, Any]:
        from jobs.contrib.progress import said

        return dict(said.of(jobs) if is_veiled else said.as_said(jobs))
