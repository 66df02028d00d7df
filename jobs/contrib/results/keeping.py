"""A supervisor that writes what bodies say of themselves."""

from __future__ import annotations

import time
from typing import Any

from django.db import DataError

from jobs.conf.logs import logger
from jobs.contrib.results import store
from jobs.contrib.results.said import heard
from jobs.lifecycle.worker_state import worker_state
from jobs.worker.supervisor import Supervisor

#: Seconds between two looks at what the bodies say of themselves.
NOTES = 1.0


class Keeping(Supervisor):
    """Its main thread writes what bodies have said, as long as its last beat was written."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: For each slot: the version of what its body said last.
        self._heard: dict[int, int] = {}
        self._next_look, self._has_written = 0.0, False

    def _listen(self, timeout: float) -> bool:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self._until(NOTES)
            if self._has_written:
                self._has_written = self._try(self._pass_on)
        return super()._listen(min(timeout, self._next_look - time.monotonic()))

    def _heartbeat(self) -> None:
        self._has_written = False
        super()._heartbeat()
        self._has_written = True

    def _pass_on(self) -> None:
        """Write what the bodies say of themselves."""
        for text in heard(self._heard):
            try:
                store.write_said(self._side, text)
            except DataError:
                # A text that the database refuses must not keep other texts from being written.
                logger.debug("a body said what cannot be kept", exc_info=True, extra=worker_state.about("said_refused"))
