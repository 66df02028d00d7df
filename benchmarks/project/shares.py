"""A task whose callers take turns."""

from __future__ import annotations

from benchmarks.completions import record
from benchmarks.project.celery import app


@app.task(queue="fair", fair_key="{tenant}")
def fair(number: int, tenant: str) -> None:
    record(number)
