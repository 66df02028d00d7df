"""What a worker's companion does for events."""

import time

from django.db import connections

from jobs.conf import conf, loaded_app
from jobs.database import databases
from jobs.events import relay, sender, subscriptions
from jobs.lifecycle.ring import told

#: Seconds between two looks at what may have been told of, on SQLite, where each write may be that; and until the next
#: one while somebody else hands on.
SOON = 0.05
#: Seconds between two looks for handlers that are gone.
RARELY = 60.0


class Post:
    """Hands events on as they are told of. All companions try, and one does it at a time."""

    def __init__(self) -> None:
        self._app = loaded_app()
        self._is_registered = False
        self._look_at = 0.0

    def wait(self) -> None:
        """Wait until something may have been told of; the tick of the clock finds what no ring told of."""
        told.wait()
        if any(connections[alias].vendor == "sqlite" for alias in conf().DATABASES):
            time.sleep(SOON)
        told.clear()

    def run_once(self) -> None:
        if self._app is None:
            return
        if not self._is_registered:
            for alias in conf().DATABASES:
                subscriptions.register(self._app, alias)
            self._is_registered = True
        elif time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + RARELY
            databases.everywhere(subscriptions.forget_gone)
        databases.everywhere(self._hand_on)

    def _hand_on(self, using: str) -> int:
        done = 0
        while (count := relay.hand_on(self._app, using)) != 0:
            if count is None:
                # Perhaps it has looked already when this event was committed.
                time.sleep(SOON)
            done += count or 0
            sender.numbered.set()
        return done
