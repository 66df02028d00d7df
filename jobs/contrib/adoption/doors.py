"""The part of the adoption in the core, and what it asks other extensions."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.doors import Extension


class Adoption(Extension):
    instead = {"jobs.store.identity.Identity": "jobs.contrib.adoption.identity.Marked"}


class Doors:
    """What an extension may have for an adoption."""

    def disown(self, using: str, is_dry: bool) -> Mapping[str, int]:
        """Forget what, beside jobs, would run in a copy of a database; or count it by name (``adopt --json``)."""
        return {}
