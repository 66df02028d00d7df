"""The part of the external calls in the core."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.doors import Extension


class Effects(Extension):
    def declared(self, task: type[Any]) -> None:
        # Celery has made an attribute of it: a callable would be a method, which takes the task first.
        policy = inspect.getattr_static(task, "on_ambiguous")
        policy = getattr(policy, "__func__", policy)
        if callable(policy):
            task.on_ambiguous = staticmethod(policy)
        elif policy not in ("retry", "park"):
            raise ValueError(f"on_ambiguous={policy!r} must be 'retry', 'park' or a callable that asks the provider")

    def reasons(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.effects import rows

        return rows.reasons(view)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.effects import admin

        return admin.job_page(request, about) if page == "job" else {}

    def metrics(self) -> Iterator[tuple[str, str, list[str], Any]]:
        from jobs.conf import conf
        from jobs.contrib.effects import rows

        def unsettled(_found: Any) -> list[Any]:
            return [([], sum(rows.unsettled(alias).count() for alias in conf().DATABASES))]

        yield "jobs_unsettled_effects", "External calls that are ambiguous or parked.", [], unsettled
