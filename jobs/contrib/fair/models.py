"""The column of a job's row that says whose job it is, and the index by which the keys of a queue are gone through."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobs.models.columns import ORDER

#: What a claim looks at. It is part of the index's condition: jobs of plain queues have no entry.
KEYED = Q(state="ready", held__isnull=True, fair_key__isnull=False)

#: Jobs of the same text share one turn (``fair_key=``). None: it was called where no keys take turns.
COLUMNS: dict[str, Any] = {"fair_key": models.CharField(_("fair key"), max_length=255, null=True)}

INDEXES = [
    models.Index(
        name="jobs_job_fair",
        fields=["queue", "fair_key", *ORDER],
        condition=KEYED,
        # PostgreSQL: in the order of bytes, whatever the database's language, which is Python's as well.
        opclasses=["varchar_ops", "varchar_pattern_ops", "int2_ops", "timestamptz_ops", "uuid_ops"],
    )
]
