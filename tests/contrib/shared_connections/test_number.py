"""How many connections a worker needs."""

from __future__ import annotations

import json
import time

import pytest
from django.db import connection

from jobs.conf import conf
from jobs.models import Job
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers import driver
from tests.helpers.harness import wait_heartbeats

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def sessions() -> int:
    """How many there are for longer than a moment."""
    found = []
    with connection.cursor() as cursor:
        for _ in range(4):
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            found.append(cursor.fetchone()[0])
            time.sleep(0.05)
    return min(found)


@pytest.mark.core
@pytest.mark.parametrize("pool", [None, {"min_size": 1, "max_size": 2, "timeout": 5}], ids=["kept", "pool"])
def test_a_worker_needs_no_more_connections_than_the_documentation_says(pool, settings):
    """For each process that runs jobs one; for the supervisor three, whatever is installed."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only")
    if pool is not None:
        # Django has pools for psycopg 3 only.
        driver.prepares()
    # Nobody is there: its threads look for events all the same.
    more = {"EVENT_BROKER": "amqp://127.0.0.1:1//", "SERVICE": "shop", "PRUNE_INTERVAL": 0.5, "RETENTION": 0.5}
    settings.JOBS = {**settings.JOBS, **{key: value for key, value in more.items() if hasattr(conf(), key)}}
    options = {**connection.settings_dict["OPTIONS"], "pool": pool}
    env = {} if pool is None else {"JOBS_TEST_DATABASE": json.dumps({"OPTIONS": options, "CONN_MAX_AGE": 0})}
    before, most = sessions(), 0
    with Worker(concurrency=2, **env) as worker:
        for _ in range(5):
            tasks.effect.delay_many([(number,) for number in range(200)])
            while Job.objects.exclude(state="succeeded").exists():
                most = max(most, sessions() - before)
            wait_heartbeats(worker.node.pk)
            most = max(most, sessions() - before)
    # The main process has two for jobs://.
    most -= 3 + (2 if settings.CELERY_BROKER_URL == "jobs://" else 0)
    # With a pool a process has one more where two of its threads ask at once.
    assert most == 2 if pool is None else 2 <= most <= 2 * 2
