"""A task that waits for a signal."""

from __future__ import annotations

from typing import Any

from benchmarks.completions import record
from benchmarks.project.celery import app


@app.task(bind=True, durable=True)
def wait(self: Any, number: int) -> None:
    self.wait_for(f"go:{number}")
    record(number)
