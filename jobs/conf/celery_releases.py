"""What differs between the releases of Celery, kombu and billiard that jobs runs with, in the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billiard import common


def was_told_to_end() -> bool:
    """Whether this process has handled a signal to end: billiard's handler raises ``SystemExit`` at any point."""
    fired = getattr(common, "terminate_handler_fired", None)
    # billiard 4.2 has only the flag.
    return bool(fired() if fired is not None else common._should_have_exited[0])


def argument_dumper(task: type[Any]) -> Callable[..., Any] | None:
    """The function that turns pydantic arguments into plain data; None before Celery 5.7: callers do it themselves."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump and staticmethod(dump)
