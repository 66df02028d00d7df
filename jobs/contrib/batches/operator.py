"""What the operator's room shows of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.contrib.batches import rows
from jobs.contrib.operator.problem import Kind, Link

KINDS = {
    "unclosed": Kind(
        severity="error",
        many=ngettext_lazy("%(number)s batch cannot end", "%(number)s batches cannot end", "number"),
        place=lambda key: Link(_("Show it"), "batch_change", (key,)),
    ),
    "batch": Kind(
        severity="info",
        many=ngettext_lazy(
            "%(number)s batch waits for its last job", "%(number)s batches wait for their last job", "number"
        ),
        is_fault=False,
        place=lambda key: Link(_("Show the job"), "job_change", (key,)),
    ),
}


def problems(found: dict[str, Any]) -> Iterator[Any]:
    return rows.problems()
