"""For extensions: a transaction on the way of an async body, which is the run's own as long as it owns its job."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import transaction

from jobs import store
from jobs.errors import LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.run import Run, current_run
from jobs.store import databases


async def fenced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a plain function in one short transaction, on the thread that completes the process's async bodies.

    Raises:
        LostLease: this run is a zombie: nothing was called.
        TypeError: there is no async body around it.
    """
    run = current_run()
    if run is None or (awaited := vars(run).get("awaited")) is None:
        raise TypeError("fenced() is awaited in the async body of a job")
    return await awaited.on_thread(partial(_call, run, partial(function, *args, **kwargs)))


def _call(run: Run, call: Callable[[], Any]) -> Any:
    databases.tidy(run.using)
    with store.of(run.using).write_mutex(), transaction.atomic(using=run.using):
        # Until its end nobody gives the job to another run.
        if not transitions.hold(run.job):
            raise LostLease("this run lost its lease")
        return call()
