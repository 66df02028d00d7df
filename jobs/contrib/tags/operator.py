"""The part of tags in the operator's room: how many live jobs have a tag, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from jobs.conf import conf
from jobs.contrib.inspection.counts import MOST
from jobs.contrib.operations.selection import Selection
from jobs.models import LIVE


def metrics() -> Iterator[tuple[str, str, list[str], Any]]:
    says = f"Live jobs with a tag of JOBS['TAG_METRICS'], of {MOST} in each state."
    yield "jobs_tagged", says, ["tag", "value", "state"], waiting


def waiting(_found: Any) -> list[tuple[list[str], int]]:
    names = conf().TAG_METRICS
    counts: Counter[tuple[str, str, str]] = Counter()
    for alias in conf().DATABASES if names else ():
        for state in LIVE:
            rows: Any = Selection([state]).rows(alias).only("pk", "tags")[:MOST]
            for tags in (job.tags for job in rows if job.tags):
                counts.update((name, tags[name], state.value) for name in names if name in tags)
    return [([*labels], count) for labels, count in counts.items()]
