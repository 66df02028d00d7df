"""What ``celery control`` says of queues holds for jobs, too."""

from __future__ import annotations

import pytest

from jobs.models import Job, Node
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import wait_ended
from tests.helpers.monitor import tell
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


# Queues


def test_a_worker_can_be_told_to_consume_other_queues():
    with Worker(concurrency=1) as worker:
        queue = Job.objects.get(pk=wait_ended(tasks.effect.delay("before").id)[0].pk).queue
        elsewhere = tasks.effect.apply_async(("elsewhere",), queue="another")
        tell(worker, "add_consumer", "another")
        wait_ended(elsewhere.id)
        tell(worker, "cancel_consumer", queue)
        wait_for(lambda: Node.objects.get(pk=worker.node.pk).queues == ["another"], 10, "the node says so")
        waits = tasks.effect.delay("waits")
        wait_ended(tasks.effect.apply_async(("elsewhere again",), queue="another").id)
        assert Job.objects.get(pk=waits.id).state == "ready"
        tell(worker, "add_consumer", queue)
        wait_ended(waits.id)
