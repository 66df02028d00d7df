"""The job of the benchmark: it works for a while, and its end is told to the adapter."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Any

from celery import Celery
from django.dispatch import receiver

from jobs import signals

#: Where the adapter listens (a datagram socket).
SOCKET = "JOBS_BENCH_SOCKET"

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.public.settings")

app = Celery("benchmarks.public", task_cls="jobs.task:Task")
app.config_from_object("django.conf:settings", namespace="CELERY")

_teller = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@app.task(name="work")
def work(created: float, padding: str = "") -> float:
    """Returns after how many milliseconds it was begun."""
    waited = 1000 * max(0.0, time.time() - created)
    time.sleep(float(os.environ.get("JOB_WORK_MS", "1")) / 1000)
    return waited


@receiver(signals.succeeded)
def tell(job: Any, **kwargs: Any) -> None:
    """After the commit."""
    if SOCKET in os.environ:
        # A killed adapter hears nothing.
        with suppress(OSError):
            _teller.sendto(f"{job.result:.3f}".encode(), os.environ[SOCKET])
