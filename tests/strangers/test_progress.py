"""celery-progress: how far a long body is, while it runs."""

import pytest
from celery import current_app
from celery.result import AsyncResult
from celery.utils.imports import symbol_by_name
from celery_progress.backend import Progress

from tests.helpers.harness import Worker, wait_ended
from tests.helpers.servers import wait_for
from tests.strangers.tasks import counts, counts_without_a_transaction

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("task", "backend"),
    [
        (counts, "jobs.backend:Backend"),
        (counts_without_a_transaction, "django_celery_results.backends:DatabaseBackend"),
    ],
)
def test_the_progress_is_seen_while_the_body_runs(tmp_path, task, backend):
    gate = tmp_path / "gate"
    with Worker(concurrency=1, STRANGERS_RESULTS=backend):
        result = AsyncResult(task.delay(str(gate)).id, backend=symbol_by_name(backend)(app=current_app))
        info = wait_for(lambda: (i := Progress(result).get_info())["state"] == "PROGRESS" and i, 20, "progress")
        assert (info["complete"], info["progress"]["percent"], info["progress"]["description"]) == (False, 75, "nearly")
        gate.touch()
        wait_ended(result.id)
        info = wait_for(lambda: (i := Progress(result).get_info())["complete"] and i, 10, "complete")
    assert (info["success"], info["result"]) == (True, "counted")
