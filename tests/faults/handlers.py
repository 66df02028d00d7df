"""A handler that a scenario adds to the second service of the example."""

from __future__ import annotations

import os
import signal
import uuid

#: The workers that have it set handle ``shop.order.paid`` once more. Whoever imported the handler would have it.
HANDLERS = "JOBS_TEST_HANDLERS"


def other(customer: uuid.UUID) -> uuid.UUID:
    """Where the handler notes what it did about the customer."""
    return uuid.uuid5(customer, "other")


if os.environ.get(HANDLERS):
    from jobs.events import handler
    from shop.loyalty.handlers import award

    @handler("shop.order.paid", bind=True)
    def note_too(self, customer: uuid.UUID, cents: int) -> None:
        if not cents:
            os.kill(os.getpid(), signal.SIGKILL)
        award(other(customer), self.event.id, cents // 100)
