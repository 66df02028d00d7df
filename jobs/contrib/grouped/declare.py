"""Which options of a task may be combined: that is checked when the task is declared."""

from __future__ import annotations

from typing import Any

from jobs.conf import conf, is_stock, own_tasks, problems

#: Traits of a task that a lost commit does not undo: the trait's name, and why neither option may be combined with it.
_BESIDE = {
    "async": ("an async def body", "what it did while it awaited stays", "the body awaits outside of any transaction"),
    "atomic": ("atomic=False (or durable=True)", "its own commits stay", "the body has no transaction to share"),
    "lock": (
        "lock=",
        "the next holder of the lock has to find what this one did",
        "the lock would be held until all bodies are committed",
    ),
}


def declared(task: Any) -> None:
    """See ``doors.Extension``. ``TypeError``: options that cannot be combined."""
    task.grouped = bool(getattr(task, "grouped", False))
    if problems() or is_stock(task.name):
        return
    own, found = getattr(task, "synchronous_commit", None), _beside(task)
    if found is not None:
        what, stays, alone = _BESIDE[found]
        if own is False or task.grouped:
            option, why = ("grouped=True", alone) if task.grouped else ("synchronous_commit=False", stays)
            raise TypeError(f"{option} and {what} do not go together: {why}; leave one of the two out")
    wanted = conf().SYNCHRONOUS_COMMIT if own is None else own
    # Our own jobs tell others of committed work.
    task.is_synced = wanted or found is not None or task.name in own_tasks()


def _beside(task: Any) -> str | None:
    """What the task does that its commit does not undo, if its declaration says so."""
    if task.is_async:
        return "async"
    if not task.atomic:
        return "atomic"
    return "lock" if task.lock is not None else None
