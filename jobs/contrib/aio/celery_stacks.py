"""Celery keeps requests and the current task on stacks per thread. A coroutine has its own stacks in all threads."""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident
from typing import Any

from celery._state import _task_stack

#: The owner of the stacks that the calling code sees; None: its thread.
owner: ContextVar[Any] = ContextVar("jobs.contrib.aio.celery_stacks.owner", default=None)


def ident() -> Any:
    return owner.get() or get_ident()


def own_stacks(task: type[Any]) -> None:
    """Let the context decide whose request a task's code sees."""
    task.request_stack.__ident_func__ = _task_stack.__ident_func__ = ident
