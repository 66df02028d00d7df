"""The part of the events that people see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.doors import Extension


class EventOperator(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.event_operator import admin

        return admin.job_page(request, about) if page == "job" else {}

    def other(self, what: Any) -> Any:
        from jobs.contrib.event_operator import stages

        return stages.other(what)

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.event_operator import stages

        return stages.reasons(view)
