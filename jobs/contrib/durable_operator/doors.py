"""The part of durable tasks that people see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.doors import Extension


class DurableOperator(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.durable_operator import admin

        return admin.job_page(request, about) if page == "job" else {}

    def reasons(self, view: Any) -> Iterable[Any]:
        from jobs.contrib.durable_operator import rows

        return rows.reasons(view)

    def waits(self, view: Any) -> Iterable[Any]:
        from jobs.contrib.durable_operator import rows

        return rows.waits(view)
