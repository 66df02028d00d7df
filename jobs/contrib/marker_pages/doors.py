"""The part of the markers' pages in the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class MarkerPages(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.marker_pages import admin

        return admin.job_page(request, about) if page == "job" else {}
