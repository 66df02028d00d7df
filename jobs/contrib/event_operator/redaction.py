"""What people may see of an event: the redaction gets its name in place of a task's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobs.conf import conf
from jobs.contrib.redaction.display import HIDDEN, Shown, shown
from jobs.events.models import ARGS, Event
from jobs.models import Job


def data_of(event: Event) -> dict[str, Any]:
    if event.problem is not None and conf().REDACT is not None and set(event.data) == {"body"}:
        # A message that is no event: its text may hold anything.
        return {"body": HIDDEN}
    return _shown(event, event.data, event.headers).kwargs


def args_of(event: Event) -> list[Any]:
    """The values without a name that came with an event of Celery's message format."""
    return _shown(event, {}, event.headers).args


def veil(rows: Iterable[Event]) -> None:
    """Redact the keys and problems of events that are shown. They must not be saved after this."""
    if conf().REDACT is None or not (found := list(rows)):
        return
    # The columns that a list leaves out are read for all rows at once.
    events = Event.objects.using(found[0]._state.db).only("data", "headers").in_bulk([row.pk for row in found])
    for row in found:
        full = events.get(row.pk) or Event()
        seen = _shown(row, full.data, full.headers)
        for column, name in (("order_key", "key"), ("problem", "error")):
            if row.__dict__.get(column) is not None:
                setattr(row, column, seen.text(name, row.__dict__[column]))


def _shown(event: Event, data: Any, headers: Any) -> Shown:
    return shown(Job.of({"task": event.name, "args": headers.get(ARGS, []), "kwargs": data}))
