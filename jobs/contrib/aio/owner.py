"""Celery keeps requests, and the current task, on stacks by thread. A coroutine's are its own in every thread."""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident
from typing import Any

from celery._state import _task_stack

#: Whose stacks the calling code sees, if not its thread's.
owner: ContextVar[Any] = ContextVar("jobs.contrib.aio.owner", default=None)


def ident() -> Any:
    return owner.get() or get_ident()


def own_stacks(task: type[Any]) -> None:
    """Let the context decide whose request a task's code sees."""
    task.request_stack.__ident_func__ = _task_stack.__ident_func__ = ident
