"""Replay: give a service the events that it missed, or let it handle events again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext

from jobs.conf import Celery, app_here, did_you_mean
from jobs.contrib.event_operator.store import names
from jobs.events import relay
from jobs.events.models import Event, Subscription
from jobs.events.services import publisher
from jobs.models import Action
from jobs.models.fields import uuid7
from jobs.models.values import scrub


def select(
    using: str,
    patterns: Iterable[str] = (),
    since: Any = None,
    until: Any = None,
    keys: Iterable[uuid.UUID] | None = None,
) -> QuerySet[Event]:
    """The events of a database, in their order.

    Parameters:
        patterns: names, or patterns such as ``shop.order.*``; none: all names.
        since, until: moments at which they happened.
        keys: their ids; None: all.
    """
    rows = Event.objects.using(using).order_by("id")
    if keys is not None:
        rows = rows.filter(uuid__in=list(keys))
    if patterns := list(patterns):
        meant = [name for name in names(using) if any(relay.matches(each, name) for each in patterns)]
        rows = rows.filter(name__in=meant)
    return rows.filter(**({"at__gte": since} if since else {}), **({"at__lt": until} if until else {}))


def services(using: str) -> list[str]:
    """The services that share the database."""
    return sorted(Subscription.objects.using(using).order_by().values_list("service", flat=True).distinct())


def check(using: str, to: str) -> bool:
    """Whether the service shares the database; ``ValueError`` if it is unknown."""
    known = services(using)
    if to not in known and publisher() is None:
        says = gettext("no service %(name)r has handlers in this database%(hint)s")
        raise ValueError(says % {"name": to, "hint": did_you_mean(to, known)})
    return to in known


def ready(events: QuerySet[Any]) -> QuerySet[Any]:
    """Those that were handed on before, and whose type and version are known."""
    return events.filter(relayed_at__isnull=False, version__gt=0)


def replay(
    app: Celery, events: QuerySet[Event], to: str, again: bool = False, number: str | None = None
) -> dict[str, int]:
    """Give events to a service's handlers: those that a handler did not have yet, or with ``again`` all of them.

    Each batch is one transaction. After a kill the same call goes on; with ``again`` if it gets the same ``number``.
    Events that were not handed on yet are left out: they come by themselves.

    Parameters:
        to: the service. A service of this database gets jobs; another service gets messages of the names that it wants.
        number: of the replay. A handler gets an event once for each number.

    Returns:
        How many ``events`` were looked at, how many ``jobs`` were made, and how many messages were ``sent``.

    Raises:
        ValueError: the service is unknown; names the nearest.
        BrokerError: the broker is away, or refuses.
    """
    using = events.db
    broker = None if check(using, to) else publisher()
    mark = (number or str(uuid7())) if again else None
    done = {"events": 0, "jobs": 0, "sent": 0}
    events, place = ready(events), 0
    while some := list(events.filter(pk__gt=place)[: relay.LIMIT]):
        place = some[-1].pk
        done["events"] += len(some)
        if broker is not None:
            done["sent"] += broker.send_to(to, some, using, mark)
            continue
        with transaction.atomic(using=using):
            locked = relay.lock(using)
            had = relay.handled(using, some, to, mark)
            done["jobs"] += sum(relay.make_jobs(app, using, locked, some, to, mark, had).values())
    return done


def replay_by(using: str, keys: Sequence[uuid.UUID], to: str, again: bool, by: str, why: str) -> dict[str, int]:
    """Replay these events, and note in the history of each who did it, and why."""
    # No transaction is open while we wait for the broker: on SQLite, no other process could write.
    with transaction.atomic(using=using) if to in services(using) else nullcontext():
        done = replay(app_here(), select(using, keys=keys), to, again)
        says = ": ".join(filter(None, [f"to {to}" + (", once more" if again else ""), why]))
        note = {"what": "replay", "by": scrub(by, 150), "why": scrub(says, 1000)}
        Action.objects.using(using).bulk_create(Action(job=key, **note) for key in keys)
    return done
