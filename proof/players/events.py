"""Handing events on: what a receiver does with a message. The broker is the model's alone."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any
from unittest.mock import patch

from celery import current_app
from django.utils import timezone

from jobs.contrib.event_broker import inbox, wire
from jobs.contrib.event_broker.models import Position
from jobs.events.models import Event
from proof.player import Differs, Player

NAME = "others.proof"
#: It has written all, and committed nothing.
STOP = "before_store"


class Events(Player):
    model = "events"
    tables = (*Player.tables, Event, Position)

    def play(self, steps: Any) -> None:
        hand_on = inbox._hand_on

        def note(app: Any, using: str, locked: Any, events: Any) -> None:
            self._now = [event.number for event in events]
            hand_on(app, using, locked, events)

        with patch.object(inbox, "_hand_on", note):
            super().play(steps)

    def reset(self) -> None:
        super().reset()
        self._keys = [str(uuid.uuid4()) for _ in range(4)]
        #: What the transaction hands on, and what was handed on of which the model has to say it yet.
        self._now: list[Any] = []
        self._handed: list[Any] = []

    def take(self, who: str, what: str = "", *rest: str) -> None:
        if who == "hands_on":
            self.expect(self._handed[:1], [int(what)])
            del self._handed[0]
        elif who != "p":
            getattr(self, f"_{what}")(who, *map(int, rest))

    def end(self, last: list[str]) -> None:
        self._end_calls()
        self.expect(self._handed, [])

    def _end_calls(self) -> None:
        """A message that is known changes nothing: the model does not say when that ends."""
        for session in self._sessions.values():
            session.end_call()

    def _reads(self, who: str, number: int) -> None:
        self._end_calls()
        self.expect(self._handed, [])
        self._now = []
        said = {"id": self._keys[number], "source": "others", "name": NAME, "number": number, "data": {}}
        message = wire.Message(**said, version=1, time=timezone.now())  # type: ignore[arg-type]
        delivery = inbox.Delivery(*wire.encode(message), NAME)
        session = self.session(who)
        session.start(partial(inbox.store, current_app._get_current_object(), "default", [delivery]), STOP)
        self.expect(session.at, STOP)

    def _stores(self, who: str, number: int) -> None:
        self.session(who).end_call()
        self._handed = self._now
        row = Event.objects.get(number=number)
        if (row.relayed_at is not None) != (number in self._handed):
            raise Differs(f"the row says that it was handed on at {row.relayed_at}")

    def _parks(self, who: str, number: int) -> None:
        self.expect(self._handed, [])

    def _dies(self, who: str) -> None:
        self.session(who).die()

    def _acknowledges(self, who: str, number: int) -> None:
        """The broker does it."""

    _dies_after = _acknowledges
