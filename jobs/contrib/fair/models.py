"""The column that says to which key (a customer, say) a job belongs, and the index to step through a queue's keys."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobs.models.columns import ORDER

#: What a claim looks at. It is part of the index's condition: jobs of plain queues have no entry.
KEYED = Q(state="ready", held__isnull=True, fair_key__isnull=False)

#: Jobs with the same text share one turn (``fair_key=``). None: the job was called where no keys take turns.
COLUMNS: dict[str, Any] = {"fair_key": models.CharField(_("fair key"), max_length=255, null=True)}

INDEXES = [
    models.Index(
        name="jobs_job_fair",
        fields=["queue", "fair_key", *ORDER],
        condition=KEYED,
        # PostgreSQL: in the order of bytes, as in Python, independent of the database's language.
        opclasses=["varchar_ops", "varchar_pattern_ops", "int2_ops", "timestamptz_ops", "uuid_ops"],
    )
]
