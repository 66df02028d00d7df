"""More fields to select many jobs at once: their worker, key, error, age and arguments."""

import datetime
import uuid
from typing import Any

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.contrib.operations.selection import DIGITS, SEARCHED, Field, moment, newest, read_id, read_text, said
from jobs.models import Job, Node
from jobs.models.fields import created_since, first_id
from jobs.models.values import parse_uuid


def _on_node(rows: QuerySet[Job], text: str) -> QuerySet[Job]:
    key = parse_uuid(text)
    named = Q(hostname=text) | Q(hostname__endswith=f"@{text}") if key is None else Q(pk=key)
    if len(text) == DIGITS and text.isalnum():
        # The first digits of an id, as lists show them; or the name of a host.
        named |= Q(pk__startswith=text)
    nodes = Node.objects.using(rows.db).filter(named)
    deaths: dict[uuid.UUID, Any] = dict(nodes.values_list("pk", "dead_at"))
    rows = rows.filter(node__in=deaths or [key])
    if deaths and None not in deaths.values():
        # Dead workers ran no job that was made after their death.
        rows = _before(rows, max(deaths.values()))
    return rows


def _before(rows: QuerySet[Job], moment: datetime.datetime) -> QuerySet[Job]:
    """Jobs made before; if every id contains its time, the primary key's index alone finds the newest of them."""
    if Job.objects.using(rows.db).filter(made_at__isnull=False).exists():
        return rows.filter(Q(pk__lt=first_id(moment), made_at=None) | Q(made_at__lt=moment))
    return rows.filter(pk__lt=first_id(moment))


def _of_key(rows: QuerySet[Job], key: str) -> QuerySet[Job]:
    # Each column by its own index: one combined condition would read the whole table.
    every = Job.objects.using(rows.db)
    marked, unique = every.filter(marker_key=key), every.filter(unique_key=key)
    return rows.filter(pk__in=marked.values("pk").union(unique.values("pk"), all=True))


def _since(rows: QuerySet[Job], moment: datetime.datetime) -> QuerySet[Job]:
    return rows.filter(created_since(moment))


def _containing(rows: QuerySet[Job], text: str) -> QuerySet[Job]:
    return newest(rows).filter(said(text))


def _read_contained(text: str) -> str:
    if conf().REDACT is not None:
        raise ValueError("the arguments are redacted (JOBS['REDACT']), and cannot be searched.")
    return read_text(text)


_WORKER, _MOMENT = "all jobs that a worker ran last: its id, 8 digits of it, its host", "2026-11-21 14:30"

FIELDS: dict[str, Any] = {
    "node": Field(_("Worker (its ID or host)"), "web1", _WORKER, _on_node, has_index=False),
    "key": Field(
        _("Key (unique or idempotency)"), "welcome:42", "all jobs of a unique key, or of a marker's", _of_key,
        is_secret=True,
    ),
    "parent": Field(
        _("Called by the job"), "6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "all jobs that its body called", "parent_id",
        read_id,
    ),
    "error": Field(
        _("Error"), "SMTPConnectError", "all jobs whose last error is of this class: SMTPException", "error__type",
        has_index=False,
    ),
    "since": Field(
        _("Created since"), "2h", f"those created since then: 2h, 7d, 2026-11-21, '{_MOMENT}'", _since, moment
    ),
    "until": Field(_("Created before"), _MOMENT, "those created before then", _before, moment),
    "ended": Field(_("Ended since"), "1h", "those that ended since then", "finished_at__gte", moment),
    # The last field: it searches the newest jobs that fit all other fields.
    "contains": Field(
        _("Arguments contain"), "ada@example.com", f"with this text in them; of the newest {SEARCHED:,}", _containing,
        _read_contained, is_secret=True,
    ),
}  # fmt: skip
