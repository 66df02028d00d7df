"""What the operator's room shows of external calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.conf import conf
from jobs.contrib.effects import rows


def metrics() -> Iterator[tuple[str, str, list[str], Any]]:
    def unsettled(_found: Any) -> list[Any]:
        return [([], sum(rows.unsettled(alias).count() for alias in conf().DATABASES))]

    yield "jobs_unsettled_effects", "External calls that are ambiguous or parked.", [], unsettled
