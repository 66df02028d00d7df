"""Events of other services: kept as rows, and handed on to their handlers here, in the order of their numbers.

A source numbers its events of a name without a gap. An event that comes too early is parked until those before it have
come (``jobs.contrib.event_broker.receiver``). So the order in which messages come does not matter, and a loss is seen.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import InterfaceError, OperationalError, ProgrammingError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from jobs.conf.logs import logger
from jobs.conf.syncpoints import reach
from jobs.contrib.event_broker import amqp, control, wire
from jobs.contrib.event_broker.models import Position
from jobs.events import relay
from jobs.events.models import ARGS, Event, Relay, Subscription
from jobs.events.services import service
from jobs.models.values import safe_repr
from jobs.store import databases

#: How many characters are kept of a message that is no event, and of a name.
KEPT, NAME = 64 * 1024, 255


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as it arrived."""

    body: bytes | str
    properties: Mapping[str, Any]
    routing_key: str = ""
    exchange: str = amqp.EXCHANGE


def store(app: Any, using: str, deliveries: Sequence[Delivery]) -> list[wire.Message]:
    """Write the events among the messages, each once, and hand on those whose turn it is, in one transaction.

    A message that is no event becomes a row that says why. Returns the control messages of other services, whose values
    were checked.
    """
    said: list[wire.Message] = []
    events: dict[uuid.UUID, Event] = {}
    replays: dict[str | None, list[uuid.UUID]] = defaultdict(list)
    for each in deliveries:
        try:
            message = wire.decode(each.body, each.properties)
            is_said = message.name in amqp.CONTROL
            if is_said:
                message = replace(message, data=control.read(message))
            _check_key(each, message)
            if is_said:
                said.append(message)
                continue
            event = _event(message)
            if message.again is not None or (each.exchange == amqp.DIRECT and amqp.RESENT not in _headers(each)):
                replays[message.again].append(event.uuid)
        except Exception as exc:
            event = _no_event(each, exc)
        events.setdefault(event.uuid, event)
    if not events:
        return said
    try:
        _store(app, using, events, replays)
    except Exception as exc:
        if is_outage(exc, using):
            raise
        if len(deliveries) > 1:
            return [heard for each in deliveries for heard in store(app, using, [each])]
        put_aside(app, using, exc, deliveries[0])
    return said


def is_outage(exc: Exception, using: str) -> bool:
    """Whether the database failed, and no message is to blame."""
    # By now Django has opened another connection in place of one that the server ended.
    is_ended = databases.sqlstate(exc) in databases.REFUSES
    is_failure = is_ended or isinstance(exc, OperationalError | InterfaceError | ProgrammingError)
    return databases.is_lost(exc, using) or (is_failure and not databases.is_refusal(exc))


def put_aside(app: Any, using: str, why: Exception, delivery: Delivery | None = None) -> None:
    """Keep a message that is no event. ``delivery=None``: not even its protocol can be read."""
    event = _no_event(delivery or Delivery(b"", {"message_id": str(uuid.uuid4())}), why)
    _store(app, using, {event.uuid: event}, {})


def go_on(app: Any, using: str, source: str, name: str, number: int = 0) -> None:
    """Hand on parked events whose turn it is, if no event up to ``number`` will come any more."""
    while True:
        with transaction.atomic(using=using):
            locked = relay.lock(using)
            _, ready = _turn(using, source, name, number)
            _hand_on(app, using, locked, ready)
        if not ready:
            return


def _check_key(delivery: Delivery, message: wire.Message) -> None:
    """Refuse a message that names another event than the one that the broker let its sender publish."""
    name = message.data["name"] if message.name in (amqp.POSITION, amqp.GONE) else message.name
    key = amqp.direct_key(service(), name) if delivery.exchange == amqp.DIRECT else name
    if delivery.routing_key != key:
        raise wire.Malformed(f"its routing key is {delivery.routing_key!r}: publish it under {key!r}")


def _headers(delivery: Delivery) -> Mapping[str, Any]:
    return delivery.properties.get("headers") or delivery.properties.get("application_headers") or {}


def _event(message: wire.Message) -> Event:
    # Our own event comes back and is not here (an older database was restored): it must not take a new event's number.
    is_own = amqp.origin_of(message.source)[0] == service()
    return Event(
        uuid=wire.key_of(message),
        name=message.name,
        version=message.version,
        source=message.source,
        order_key=message.key,
        data=message.data,
        headers={**message.trace, **({ARGS: message.args} if message.args else {})},
        at=message.time or timezone.now(),
        number=None if is_own else message.number,
        relayed_at=None if message.again is None else timezone.now(),
    )


def _no_event(delivery: Delivery, why: Exception) -> Event:
    problem = str(why) if isinstance(why, wire.Malformed) else f"it cannot be kept: {type(why).__name__}: {why}"
    body = delivery.body if isinstance(delivery.body, str) else delivery.body.decode(errors="replace")
    properties = delivery.properties
    # The broker writes headers of its own, x-..., when it delivers again.
    headers = _headers(delivery).items()
    sent = sorted((str(name), safe_repr(value)) for name, value in headers if not str(name).startswith("x-"))
    about = [str(properties.get("message_id")), str(properties.get("content_type")), repr(sent)]
    key = "\0".join([delivery.routing_key, *about, body])
    logger.warning("a message is no event: %s", problem, extra={"action": "event_malformed"})
    return Event(
        # The same message, delivered again, is the same row.
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, key.encode(errors="replace").decode()),
        name=_clean(delivery.routing_key, NAME) or "?",
        # No handler and no replay takes this version.
        version=0,
        source=_clean(str(delivery.properties.get("app_id") or "?"), NAME),
        data={"body": _clean(body, KEPT)},
        relayed_at=timezone.now(),
        problem=_clean(problem, KEPT),
    )


def _clean(text: str, length: int) -> str:
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")[:length]


def _store(app: Any, using: str, events: dict[uuid.UUID, Event], replays: Mapping[str | None, list[uuid.UUID]]) -> None:
    with transaction.atomic(using=using):
        locked = relay.lock(using)
        rows = databases.each(Event.objects.filter(uuid__in=events))
        known = {key for part in rows for key in part.values_list("uuid", flat=True)}
        new = [event for key, event in events.items() if key not in known]
        # Race: a new handler is written under the same lock. From the times, a replay sees which events it had.
        # A value, and not Now(): Django compiles an expression for each row.
        now = databases.clock(using)
        for event in new:
            event.received_at, event.relayed_at = now, event.relayed_at and now
        at_once = _next(using, new)
        rest = [event for event in new if event.relayed_at is None]
        Event.objects.using(using).bulk_create(new)
        ready = [(event.pk, event) for event in at_once] + _in_turn(using, rest)
        # In the order in which they came.
        _hand_on(app, using, locked, [event for _, event in sorted(ready, key=lambda pair: pair[0])])
        for again, keys in replays.items():
            found = Event.objects.using(using).filter(uuid__in=keys, problem=None).exclude(relayed_at=None)
            some = sorted(found, key=lambda event: keys.index(event.uuid))
            had = relay.handled(using, some, service(), again)
            relay.make_jobs(app, using, locked, some, service(), again, had)
        reach("before_store")
    reach("after_store")


def _by_name(events: Iterable[Event]) -> dict[tuple[str, str], list[Event]]:
    """Those with a number that are still to be handed on, by source and name."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.number is not None and event.relayed_at is None:
            found[event.source, event.name].append(event)
    return found


def _next(using: str, new: Sequence[Event]) -> list[Event]:
    """The events whose turn it is, in few statements, in the usual case: nothing of their name is missing or parked."""
    found = [event for event in new if event.number is None and event.relayed_at is None]
    for (source, name), some in _by_name(new).items():
        numbers = [event.number for event in some]
        rows = Event.objects.using(using).filter(source=source, name=name, number__in=numbers)
        taken, fresh = set(rows.values_list("number", flat=True)), []
        for event in some:
            if event.number in taken:
                # A source that lost its database counts anew, with numbers that other events have here.
                event.number = None
                found.append(event)
            else:
                taken.add(event.number)
                fresh.append(event)
        positions = Position.objects.using(using).filter(source=source, name=name, gap_since=None)
        for position in positions if fresh else ():
            first = position.number + 1
            if [event.number for event in fresh] == list(range(first, first + len(fresh))):
                positions.update(number=fresh[-1].number)
                found += fresh
    for event in found:
        event.relayed_at = event.received_at
    return found


def _in_turn(using: str, new: Sequence[Event]) -> list[tuple[int, Event]]:
    """The events whose turn it is, new or parked until now, each with the id of the last event that it waited for."""
    found = []
    for (source, name), some in _by_name(new).items():
        before, ready = _turn(using, source, name)
        last = 0
        for event in [each for each in some if each.number is not None and each.number <= before] + ready:
            last = max(last, event.pk)
            found.append((last, event))
    return found


def _turn(using: str, source: str, name: str, missing: int = 0) -> tuple[int, list[Event]]:
    """Move the position of a name on, as far as nothing is missing.

    Parameters:
        missing: nothing up to this number will come any more.

    Returns:
        The position before, and what is to be handed on.
    """
    rows = Position.objects.using(using).filter(source=source, name=name)
    position = rows.first() or Position(source=source, name=name)
    before, ready, is_behind = position.number, [], False
    events = Event.objects.using(using).filter(source=source, name=name, number__gt=before)
    waiting = list(events.order_by("number")[: relay.LIMIT])
    for event in waiting:
        assert event.number is not None
        if event.number > max(position.number, missing) + 1:
            is_behind = True
            break
        position.number = event.number
        if event.relayed_at is None:
            ready.append(event)
    position.number = max(position.number, missing)
    is_behind |= len(waiting) == relay.LIMIT
    if not is_behind:
        position.gap_since = None
    elif position.gap_since is None or position.number != before:
        position.gap_since = Now()
    position.save(using=using)
    return before, ready


def _hand_on(app: Any, using: str, locked: Relay, events: Sequence[Event]) -> None:
    """Make the jobs, and note for each event that it was handed on, or why no handler handles it."""
    if not events:
        return
    found = relay.make_jobs(app, using, locked, events)
    rows = Event.objects.using(using)
    if parked := [event.pk for event in events if event.relayed_at is None]:
        rows.filter(pk__in=parked).update(relayed_at=Now())
    unhandled = [event for event in events if not found[event.pk]]
    known = Subscription.objects.using(using).exclude(version=None) if unhandled else ()
    problems: dict[str, list[int]] = defaultdict(list)
    for event in unhandled:
        versions = sorted({str(each.version) for each in known if relay.matches(each.pattern, event.name)})
        says = f"no handler understands its version {event.version}: they handle version {', '.join(versions)}"
        problems[says if versions else "no handler is there for it"].append(event.pk)
    for problem, keys in problems.items():
        rows.filter(pk__in=keys).update(problem=problem)
