"""The part of the rehearsal in the core: a button on a job's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class Rehearsal(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.rehearsal import admin

        return admin.job_page(request, about) if page == "job" else {}
