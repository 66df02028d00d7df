"""The part of the external calls in the core."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction

from jobs.doors import Extension

POLICY = "'retry', 'park' or a callable that asks the provider"


class Effects(Extension):
    """Options of a task that come on top:

    on_ambiguous (``"retry"``, ``"park"`` or a callable, default ``"retry"``):
        What becomes of an external call that may or may not have happened: see :func:`jobs.effect`.
    """

    options = {"on_ambiguous": (POLICY, (object,))}

    def declared(self, task: Any) -> None:
        # Celery has made it an attribute of the class: a callable would be a method, and get the task first.
        policy = inspect.getattr_static(task, "on_ambiguous", "retry")
        policy = policy.__func__ if isinstance(policy, staticmethod) else policy
        if not callable(policy) and policy not in ("retry", "park"):
            raise ValueError(f"on_ambiguous={policy!r} must be {POLICY}")
        if iscoroutinefunction(policy):
            raise TypeError(f"on_ambiguous={policy!r} is async, and is called on a thread: make it a plain function")
        task.on_ambiguous = staticmethod(policy) if callable(policy) else policy

    def reasons(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.effects import rows

        return rows.reasons(view)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.effects import admin

        return admin.job_page(request, about) if page == "job" else {}

    def prune(self, using: str, budget: float) -> Mapping[str, int]:
        from jobs.contrib.effects import old

        return {"effects": old.prune(using, budget)}
