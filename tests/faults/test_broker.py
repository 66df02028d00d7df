"""The broker dies, and forgets."""

from __future__ import annotations

import pytest

from tests.faults.guards import guard
from tests.faults.ledger import LOST_MESSAGES
from tests.faults.worker import workers


@pytest.mark.quick
@pytest.mark.brokers("redis", "rabbitmq")
@guard("jobs/maintenance/relay.py", "self._suspects[using].publish_again()", "0", case="redis")
@guard("jobs/maintenance/relay.py", 'done["published"] += self._publish_due(using)')
def test_broker_killed_and_restarted_under_load(ledger, broker):
    """Redis comes back empty, RabbitMQ with what it wrote; what was enqueued meanwhile was never published.

    Guard: the relay looks for lost messages (``Suspects.publish_again``), and publishes what did not leave
    (``Relay._publish_due``).
    """
    ledger.enqueue(400)
    with workers(2):
        with ledger.load(100):
            ledger.wait_effects(20)
            assert broker.depth() > 100
            broker.kill()
            ledger.wait_committed(50)
            broker.start()
        ledger.check(within=LOST_MESSAGES)


@pytest.mark.quick
@guard("jobs/maintenance/relay.py", "self._suspects[using].publish_again()", "0")
def test_broker_forgets_all_messages(ledger, broker):
    """FLUSHALL, or a purge, with most jobs published and not yet started.

    Guard: the relay looks for lost messages (``Suspects.publish_again``).
    """
    ledger.enqueue(400)
    with workers(2):
        ledger.wait_effects(20)
        assert broker.drop_messages() > 100
        ledger.check(within=LOST_MESSAGES)
