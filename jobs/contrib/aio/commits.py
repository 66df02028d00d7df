"""What a body returns that has something to commit: :meth:`jobs.Task.commit`."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import transaction

from jobs.execution import pipeline
from jobs.lifecycle.run import Run
from jobs.store.databases import job_alias


def _nothing() -> None:
    """The completion alone."""


class Commit:
    """A function, with its arguments, that is to be called in the transaction of the job's completion."""

    def __init__(self, function: Callable[..., Any] | None, args: Any, kwargs: Any) -> None:
        if function is None and not (args or kwargs):
            function = _nothing
        if not callable(function) or iscoroutinefunction(function):
            raise TypeError(
                f"commit() takes a plain function and its arguments, and not {function!r}: it is called in one short "
                "transaction, in which nothing is awaited; await before, and return self.commit(function, ...)"
            )
        self.is_called = False
        self._function, self._args, self._kwargs = function, args, kwargs

    def within(self, is_atomic: bool) -> Any:
        """Call it. ``TypeError``: there is no transaction around it."""
        self.is_called = True
        if not is_atomic and self._function is not _nothing:
            raise TypeError(
                "self.commit() is called in the transaction of the completion, and a plain body with atomic=False, or "
                "durable=True, has none: leave atomic=False out, or make the body an async def; in a durable task make "
                "it a step: self.step(name, function)"
            )
        # After a deadlock it is called again, and it may change its arguments.
        try:
            args, kwargs = deepcopy((self._args, self._kwargs))
        except Exception as exc:
            raise TypeError(
                "an argument of self.commit() cannot be copied, and after a deadlock the function is called again: "
                f"pass it plain values ({exc})"
            ) from exc
        return self._function(*args, **kwargs)

    def alone(self) -> Any:
        """Call it in a transaction of its own: a plain call has no job to complete."""
        with transaction.atomic(using=job_alias()):
            return self.within(is_atomic=True)


def commit(run: Run | None, function: Callable[..., Any] | None, args: Any, kwargs: Any) -> Commit:
    """See ``jobs.Task.commit``."""
    made = Commit(function, args, kwargs)
    if run is not None:
        run.promised = made
    return made


def returned(run: Run | None, result: Any) -> Any:
    """See ``pipeline.returned``."""
    if not isinstance(result, Commit):
        if run is not None and run.promised is not None and not run.promised.is_called:
            raise TypeError("the body did not return what self.commit() gave it, so it would do nothing: return it")
        return result
    if run is None:
        return result.alone()
    if isinstance(result := result.within(run.is_atomic), Commit):
        raise pipeline.not_run(result)
    return result
