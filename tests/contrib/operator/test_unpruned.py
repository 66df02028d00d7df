"""Whether prune keeps up is known, however much of the history is kept."""

from __future__ import annotations

import pytest

from jobs.contrib.operator.unpruned import behind
from jobs.contrib.pruning import prune
from jobs.contrib.pruning.prune import Prune
from jobs.models import Job, Marker
from tests.helpers.plans import assert_indexed, make_history
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86400.0


@pytest.fixture(autouse=True)
def _kept(settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "BATCH": 10, "RETENTION": DAY, "RETENTION_FAILED": 10 * DAY}
    monkeypatch.setattr(prune, "OLD_BATCHES", 1)


def test_what_should_be_gone_is_seen_behind_what_is_kept():
    for n in range(25):
        job = make("succeeded", age=30 * DAY + n)
        Marker.objects.create(key=str(n), kind="task", job=job.pk)
    for n in range(5):
        make("failed", age=2 * DAY + n)
    make("succeeded", age=DAY + 60)
    assert behind("default") is None, "prune comes to the last one within two hours"
    first = [make("succeeded", age=3 * DAY + n) for n in range(15)][-1]
    at = behind("default")
    assert at is not None
    assert at >= first.finished_at
    Marker.objects.all().delete()
    assert behind("default") == Job.objects.order_by("finished_at").first().finished_at
    Prune().run_once()
    assert behind("default") is None


@pytest.mark.core
@pytest.mark.database
def test_whether_prune_is_behind_is_asked_by_an_index(settings):
    make_history()
    settings.JOBS = {**settings.JOBS, "BATCH": 500}
    assert behind("default") is not None
    assert_indexed("behind", lambda: behind("default"))
