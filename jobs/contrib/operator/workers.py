"""Orders that a person may give a worker, on any machine: be quiet, claim again, stop."""

import uuid
from collections.abc import Collection
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.operations.notes import signed
from jobs.contrib.operations.selection import DIGITS
from jobs.contrib.operator import orders
from jobs.contrib.operator.store import give
from jobs.models import Node
from jobs.store import databases

#: The labels of the buttons.
LABELS: dict[str, Any] = {
    orders.QUIET: _("Quiet: claim nothing more"),
    orders.RESUME: _("Claim again"),
    orders.STOP: _("Stop, when what runs has ended"),
}


def find(text: str) -> Node:
    """The live worker with this id, or its first 8 digits, or on this host; ``ValueError`` unless it is exactly one."""
    rows = Node.objects.using(databases.home()).filter(dead_at=None).order_by("-started_at")
    found = [node for node in rows if text in (str(node.pk), str(node.pk)[:DIGITS], node.hostname, node.host)]
    if len(found) != 1:
        raise ValueError(gettext("%(number)s live workers are called %(name)s") % {"number": len(found), "name": text})
    return found[0]


def tell(key: uuid.UUID, verb: str, who: str = "", why: str = "") -> bool:
    """Give a worker an order, which it reads within a second; False: it is dead, or unknown."""
    if not Node.objects.using(databases.home()).filter(pk=key, dead_at=None).exists():
        return False
    give(key, verb, signed(f"the worker was told to {verb}", who, why))
    return True


def seen(keys: Collection[uuid.UUID]) -> list[Node]:
    """Note that a person has seen that these workers died; returns the ones that were not seen before."""
    rows = Node.objects.using(databases.home()).filter(dead_at__isnull=False, signed_off=False, seen_at=None)
    found = list(rows.filter(pk__in=keys))
    rows.filter(pk__in=[node.pk for node in found]).update(seen_at=Now())
    return found
