"""Handlers that a scenario adds to the second service of the example: ``JOBS_TEST_HANDLERS="late"``."""

from __future__ import annotations

import os
import signal
import uuid

from jobs.events import handler
from shop.loyalty.handlers import award

VARIABLE = "JOBS_TEST_HANDLERS"


def other(customer: uuid.UUID) -> uuid.UUID:
    """Where the second handler notes what it did about the customer."""
    return uuid.uuid5(customer, "other")


if os.environ.get(VARIABLE):

    @handler("shop.order.paid", bind=True)
    def note_too(self, customer: uuid.UUID, cents: int) -> None:
        if not cents:
            os.kill(os.getpid(), signal.SIGKILL)
        award(other(customer), self.event.id, cents // 100)
