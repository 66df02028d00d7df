"""What the options of a task go together with: it is decided when the task is declared."""

from __future__ import annotations

from typing import Any

from jobs.conf import conf, is_stock, own_tasks, problems

#: What a task may be whose commit does more than to keep its effects: why it must be on the disk, and the cure.
_BESIDE = {
    "is_async": (
        "an async def body",
        "what it did while it awaited is not undone with the commit: leave synchronous_commit= out",
    ),
    "atomic": (
        "atomic=False",
        "its own commits are on the disk before the job's: leave one of the two out (durable=True is the second)",
    ),
    "lock": (
        "lock=",
        "the next holder of the lock must find what this one did, whatever becomes of the server: leave one of the "
        "two out",
    ),
}


def declared(task: Any) -> None:
    """See ``doors.Extension``. ``TypeError``: options that do not go together."""
    if problems() or is_stock(task.name):
        return
    own = getattr(task, "synchronous_commit", None)
    found = _beside(task)
    if own is False and found is not None:
        what, why = _BESIDE[found]
        raise TypeError(f"synchronous_commit=False and {what} do not go together: {why}")
    wanted = conf().SYNCHRONOUS_COMMIT if own is None else own
    # Our own jobs tell others of what is committed.
    task.is_synced = wanted or found is not None or task.name in own_tasks()


def _beside(task: Any) -> str | None:
    """What the task does that its commit does not undo, if its declaration says so."""
    if task.is_async:
        return "is_async"
    if not task.atomic:
        return "atomic"
    return "lock" if "lock" in task.key_templates else None
