"""Another file is put in the place of a SQLite database's, while a worker has the old one open."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from celery import current_app
from django.db import connections
from django.db.backends.signals import connection_created

from jobs import extensions, store
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Node
from jobs.worker.runner import Runner
from jobs.worker.supervisor import Supervisor
from tests import tasks
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUE = "celery"


@pytest.fixture
def runner(node):
    return Runner(current_app._get_current_object(), "here")


@pytest.mark.parametrize("queues", [[QUEUE], [QUEUE, "other"]])
def test_a_file_that_is_put_in_the_place_of_a_database_is_used_from_then_on(
    second, runner, monkeypatch, caplog, queues
):
    """A backup that was moved there, say."""
    monkeypatch.setattr("jobs.worker.runner.AWAY_PAUSE", 0.0)
    monkeypatch.setattr("jobs.worker.runner.HANGS", 0)
    monkeypatch.setattr(worker_state, "queues", queues)
    own = connections[second]
    Node.objects.using(second).create(pk=worker_state.node, hostname="web1", pid=1)
    job = tasks.noop.apply_async(queue=QUEUE, using=second)
    path = Path(own.settings_dict["NAME"])
    # When it is closed, all that was written is in the file itself.
    own.close()
    shutil.copy(path, path.with_suffix(".copy"))
    Job.objects.using(second).all().delete()
    own.close()
    # For the signal it has another name here.
    prepare = lambda connection, **more: store.of(second).prepare(own)  # noqa: E731
    connection_created.connect(prepare, sender=type(own))
    own.ensure_connection()
    path.with_suffix(".copy").replace(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "_exit", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            extensions.instead(Supervisor)(os.getpid(), {"pool": "prefork"}, -1, -1)._heartbeat()
    wait_for(runner.run_batch, 10, "the new file is used")
    assert "was replaced while the worker runs" in caplog.text
    own.close()
    assert Job.objects.using(second).get(pk=job.id).state == "succeeded"
