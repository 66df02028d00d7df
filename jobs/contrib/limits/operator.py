"""What the operator's room shows of limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.contrib.limits import usage
from jobs.contrib.operator.problem import Kind, Link


def _kind(many: Any) -> Kind:
    return Kind(
        severity="info", many=many, is_fault=False, place=lambda _about: Link(_("Show them"), "limit_changelist")
    )


KINDS = {
    "limited": _kind(ngettext_lazy("%(number)s limit is reached", "%(number)s limits are reached", "number")),
    "rated": _kind(ngettext_lazy("%(number)s rate is reached", "%(number)s rates are reached", "number")),
}


def status(found: dict[str, Any]) -> dict[str, Any]:
    return {"limits": usage.usage()}


def problems(found: dict[str, Any]) -> Iterator[Any]:
    return usage.problems(found["limits"])
