"""The part of the pages in the core: Django's admin asks it for them. What they ask other extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class Pages(Extension):
    instead = {"jobs.admin.register": "jobs.contrib.pages.admin.register"}


class Doors:
    """What an extension may have for the pages. It changes nothing."""

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        """Parts of a page of the admin, as HTML that is safe, by their places:
        ``job``, about a ``View``: ``above`` all, ``reasons``, ``history``, and ``related`` (``<dt>`` and ``<dd>``).
        ``dashboard``, about what ``status`` found: ``panel``.
        """
        return {}
