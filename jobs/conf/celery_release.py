"""Which Celery it is: all that is done in another way with the releases 5.5 and 5.6 than with 5.7 stands here.

``jobs/conf/private.py`` looks whether the rest is there, which is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import states
from celery.app.task import Context


def dumper_of(task: type[Any]) -> Any:
    """What makes plain data of arguments that are pydantic models; None: there are none, or (before 5.7) callers do."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return None if dump is None else staticmethod(dump)


def fail_chain(
    backend: Any, chain: Iterable[Any] | None, exc: Any, traceback: Any, is_kept: bool, state: str = states.FAILURE
) -> None:
    """Tell the result backend that the rest of a chain does not run; before 5.7 it was a part of another method."""
    if (fail := getattr(backend, "_fail_chain", None)) is not None:
        fail(chain, exc, traceback, is_kept, state)
        return
    for step in chain or ():
        context = Context(step)
        context.update(context.options)
        context.id, context.group = context.options.get("task_id"), context.options.get("group_id")
        if is_kept and context.id:
            backend.store_result(context.id, exc, state, traceback=traceback, request=context)
        if "chord" in context.options:
            backend.on_chord_part_return(context, state, exc)
