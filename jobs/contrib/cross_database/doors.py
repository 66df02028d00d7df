"""Its part in a call."""

from __future__ import annotations

from typing import Any

from django.db import connections

from jobs.conf.logs import logger
from jobs.doors import Extension

#: The tasks and databases that this process has warned of.
_said: set[tuple[str, str, str]] = set()

TEXT = (
    "%s was called in a transaction of %r, and its job is in %r, which commits it at once: the job stays if that "
    "transaction is rolled back. Call it with apply_async(using=%r) if %r is one of JOBS['DATABASES']. Else call it "
    "when that transaction has committed"
)


class CrossDatabase(Extension):
    def inserting(self, jobs: list[Any], using: str) -> None:
        if (own := connections[using]).in_atomic_block or not own.get_autocommit():
            return
        for other in connections.all(initialized_only=True):
            if other.in_atomic_block and (about := (jobs[0].task, other.alias, using)) not in _said:
                _said.add(about)
                extra = {"action": "call_elsewhere", "task": about[0]}
                logger.warning(TEXT, *about, other.alias, other.alias, extra=extra)
