"""What a worker's companion does for events."""

import time
import uuid

from django.db import connections, transaction

from jobs.conf import conf, loaded_app
from jobs.database import databases
from jobs.events import publisher, relay, subscriptions
from jobs.lifecycle.board import board
from jobs.lifecycle.ring import told
from jobs.models import Node

#: Seconds between two looks at what may have been told of, on SQLite, where each write may be that; and until the next
#: one while somebody else hands on.
SOON = 0.05
#: Seconds between two looks for handlers that are gone.
RARELY = 60.0


class Post:
    """Hands events on as they are told of. All companions try, and one does it at a time."""

    def __init__(self) -> None:
        self._app = loaded_app()
        #: For each database the node that its handlers were written for.
        self._registered: dict[str, uuid.UUID] = {}
        self._look_at = time.monotonic() + RARELY

    def wait(self) -> None:
        """Wait until something may have been told of; the tick of the clock finds what no ring told of."""
        told.wait()
        if any(connections[alias].vendor == "sqlite" for alias in conf().DATABASES):
            time.sleep(SOON)
        told.clear()

    def run_once(self) -> None:
        if self._app is None:
            return
        databases.everywhere(self._register)
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + RARELY
            databases.everywhere(subscriptions.forget_gone)
        databases.everywhere(self._hand_on)

    def _register(self, using: str) -> None:
        """Again for each new node: while the old one was taken for dead, its handlers may have been forgotten."""
        node = board.node
        if self._registered.get(using) == node:
            return
        with transaction.atomic(using=using):
            # What is being handed on at this moment is not for a new handler, so its ``since`` has to be after that.
            relay.lock(using)
            subscriptions.register(self._app, using)
        if Node.objects.using(using).filter(pk=node).exists():
            # Before that somebody may forget them.
            self._registered[using] = node

    def _hand_on(self, using: str) -> int:
        done = 0
        while (count := relay.hand_on(self._app, using)) != 0:
            if count is None:
                # Perhaps it has looked already when this event was committed.
                time.sleep(SOON)
            done += count or 0
            publisher.numbered.set()
        return done
