"""The part of the pauses in the core, whose claims obey them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class Pauses(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.pauses import admin

        return admin.job_page(request, about) if page == "job" else {}
