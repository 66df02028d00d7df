"""Blocks in which all calls become rows, and what such a block does with the call of a stock task."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import transaction

from jobs import extensions
from jobs.calling import outbox
from jobs.conf import reads_rows
from jobs.lifecycle import wakeups
from jobs.lifecycle.run import current_job
from jobs.models import Job
from jobs.models.values import jsonable, storable
from jobs.store import databases

#: Options of a call that are live objects, which a row cannot keep.
_LOCAL = ("producer", "connection", "publisher", "router", "result_cls", "task_type", "add_to_parent")


@contextmanager
def calls_are_rows(using: str) -> Iterator[None]:
    """All calls of the block become rows of this database, also those of stock tasks, whose message a job sends."""
    with transaction.atomic(using=using, savepoint=False):
        token = outbox.following.set(using)
        try:
            yield
        finally:
            outbox.following.reset(token)


def send(app: Any, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
    """Replaces ``app.send_task``: in such a block a job (``jobs.send``) sends the message after the commit."""
    using = outbox.following.get()
    if using is None and options.get("chord") and reads_rows(app) and databases.in_transaction(databases.job_alias()):
        # A part of a chord whose rows are not committed yet: the part might end before the commit.
        using = databases.job_alias()
    if using is None:
        return type(app).send_task(app, name, args, kwargs, **options)
    task_id = options.get("task_id") or str(uuid.uuid4())
    kept = {key: value for key, value in options.items() if value is not None and key not in _LOCAL}
    call = [name, list(args or ()), dict(kwargs or {}), storable({**kept, "task_id": task_id}, "the options")]
    job = current_job()
    queue = job.queue if job else app.conf.task_default_queue
    sender = app.tasks["jobs.send"]
    sent = Job(task=sender.name, args=jsonable(call, "the call"), queue=queue)
    for called in sender.call_hooks:
        called(sender, sent)
    add_own(sent.task, sent.args, using, queue, job)
    return app.AsyncResult(task_id)


def add_own(task: str, args: list[Any], using: str, queue: str, parent: Job | None, is_called: bool = False) -> None:
    """Add a job of this app's own to the current transaction.

    Parameters:
        is_called: it counts as a call that the running job made.
    """
    tree = {"parent_id": parent.pk, "root": parent.root_id} if parent else {}
    made = Job(task=task, args=args, queue=queue, **tree)
    for change in extensions.through("inserting") if is_called else ():
        change([made], using)
    made.save(force_insert=True, using=using)
    transaction.on_commit(partial(wakeups.notify, using, {queue}), using=using, robust=True)
