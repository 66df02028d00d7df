"""The part of the reasons in the core: they are shown on a job's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class Why(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.why import page as own

        return {"reasons": own.reasons(request, about)} if page == "job" else {}
