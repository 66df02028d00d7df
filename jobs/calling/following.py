"""Calls that go as rows with a transaction of the database, whatever they call: also the messages of stock tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import Celery
from django.db import transaction
from kombu.utils.uuid import uuid

from jobs.calling import outbox
from jobs.conf import reads_rows
from jobs.lifecycle import isolation, transitions
from jobs.lifecycle.run import current_job
from jobs.models.values import jsonable, storable
from jobs.store import databases

#: Options of a call that are live objects, which no row can keep.
_LOCAL = ("producer", "connection", "publisher", "router", "result_cls", "task_type", "add_to_parent")


@contextmanager
def calls_are_rows(using: str) -> Iterator[None]:
    """All calls of the block are rows of this database: of our tasks, and of those whose message has to be sent."""
    with transaction.atomic(using=using, savepoint=False):
        token = outbox.following.set(using)
        try:
            yield
        finally:
            outbox.following.reset(token)


def install(app: Celery) -> None:
    """Let ``app.send_task`` heed transactions; done when the first of our tasks is bound to the app."""
    if "send_task" not in vars(app):
        app.send_task = partial(send, app, app.send_task)


def send(
    app: Celery, original: Callable[..., Any], name: str, args: Any = None, kwargs: Any = None, **options: Any
) -> Any:
    """Stand in for ``app.send_task``: a message among follow-ups leaves after the commit, by a job (``jobs.send``)."""
    using = outbox.following.get()
    if using is None and options.get("chord") and reads_rows(app) and databases.in_transaction(databases.job_alias()):
        # A part of a chord whose rows are not committed yet: it might end before they are.
        using = databases.job_alias()
    if using is None:
        isolation.check("celery", f"the stock task {name}")
        return original(name, args, kwargs, **options)
    task_id = options.get("task_id") or uuid()
    kept = {key: value for key, value in options.items() if value is not None and key not in _LOCAL}
    call = [name, list(args or ()), dict(kwargs or {}), storable({**kept, "task_id": task_id}, "the options")]
    job = current_job()
    queue = job.queue if job else app.conf.task_default_queue
    transitions.add_own("jobs.send", jsonable(call, "the call"), using, queue, job)
    return app.AsyncResult(task_id)
