"""Messages arrive more often than once, late, and in any order."""

from __future__ import annotations

import pytest

from tests import tasks
from tests.faults import messages
from tests.faults.guards import CLAIM, guard
from tests.faults.ledger import WORK
from tests.faults.worker import workers


@pytest.mark.quick
@guard(*CLAIM)
def test_every_message_delivered_two_to_five_times_in_any_order(ledger, broker):
    """At once to four processes of two workers, and all of them again when the jobs have ended: one run each.

    Guard: the claim's condition ``state=READY`` (``lifecycle.claim``). Without it jobs run again, and the constraint
    ``jobs_job_finished`` and the fence of the settle still keep their effects from being committed twice.
    """
    ledger.enqueue(300, tasks.lingers)
    broker.drop_messages()
    messages.repeat(times=(2, 5))
    with workers(2):
        ledger.check(within=WORK)
        messages.repeat(times=(1, 1))
        ledger.check(within=WORK)
        assert ledger.most_claims() == 1
