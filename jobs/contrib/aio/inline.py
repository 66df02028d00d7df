"""Async bodies without a worker's loop: in ``run_jobs()``, and in Celery's ``apply()``. The calling thread waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from jobs.contrib.aio import sentry
from jobs.contrib.aio.awaited import Awaited
from jobs.contrib.aio.celery_stacks import ident, owner
from jobs.execution import pipeline
from jobs.lifecycle.run import Run

#: What ``next()`` returns when the steps are over.
END = object()


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine. What it calls by ``sync_to_async``, as Django's ORM does, runs in this thread."""
    # The loop has a thread of its own, which has to see the requests of this thread.
    token = owner.set(ident())
    try:
        return async_to_sync(function)(*args, **kwargs)
    finally:
        owner.reset(token)


def run(run: Run) -> None:
    """A run from begin to end."""
    copy_context().run(_run, run)


def _run(run: Run) -> None:
    steps = pipeline.steps(run)
    awaited = Awaited(run, lambda function: sync_to_async(function)())
    with sentry.around(run):
        if next(steps, END) is None:
            call(awaited.drive)
            awaited.conclude()
            for pause in steps:
                time.sleep(pause or 0)
