"""The part of the canvas in the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from jobs.doors import Extension


def _is_untold(using: str) -> Any:
    from jobs.contrib.canvas import followups

    return followups.is_untold(using)


class Canvas(Extension):
    needed = (_is_untold, _("what waits for its end is not told of it yet; try in a moment"))

    @property
    def completing(self) -> Callable[[Any], Callable[[], None] | None]:
        # Each run uses this: so it is imported only once.
        from jobs.contrib.canvas import followups

        return followups.of

    @property
    def chords(self) -> Any:
        from jobs.contrib.canvas import chords

        return chords

    def ended(self, job: Any, error: Mapping[str, Any]) -> Callable[[], None] | None:
        from jobs.contrib.canvas import followups

        return followups.awaited(job, error)

    def taken(self, call: Any, holder: Any, using: str) -> Any:
        from jobs.contrib.canvas import same

        return same.stand_in(call, holder, using)

    def replacing(self, job: Any, using: str) -> None:
        from jobs.contrib.canvas import followups

        followups.rename(job, using)

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.canvas import chords

        chords.prune(using)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.canvas.page import job_page

        return job_page(request, about) if page == "job" else {}
