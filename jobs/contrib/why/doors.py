"""The part of the reasons in the core: they are shown on a job's page. What they ask other extensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.doors import Extension


class Why(Extension):
    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.why import page as own

        return {"reasons": own.reasons(request, about)} if page == "job" else {}


class Doors:
    """What an extension may have for the reasons. It changes nothing."""

    def reasons(self, view: Any) -> Iterable[Any]:
        """Why a job is where it is, beside the reasons of its state: each a ``Reason``."""
        return ()

    def imports(self, job: Any) -> bool:
        """Whether a worker that does not know the job's task imports it when it claims the job."""
        return False
