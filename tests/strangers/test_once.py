"""celery-once: its tasks stay stock, and a check says so; mixed with our class, its lock outlives a rollback."""

import celery_once
import pytest
from celery import Celery
from django.db import transaction

from jobs import Task
from jobs.contrib.checks import system as checks
from jobs.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def app(tmp_path):
    made = Celery("once", task_cls="jobs.task:Task", broker="jobs://", set_as_current=False)
    made.conf.ONCE = {"backend": "celery_once.backends.File", "settings": {"location": str(tmp_path)}}
    return made


def test_a_check_names_its_tasks(app):
    @app.task(name="t.once", base=celery_once.QueueOnce)
    def once(): ...

    [message] = [each for each in checks.check_tasks(app) if each.id == "jobs.W021"]
    assert "is not: t.once." in message.msg


def test_its_lock_outlives_a_rollback_and_ours_does_not(app):
    class Mixed(celery_once.QueueOnce, Task):
        abstract = True

    @app.task(name="t.mixed", base=Mixed)
    def mixed(): ...

    @app.task(name="t.unique", unique="t.unique")
    def unique(): ...

    with transaction.atomic():
        mixed.delay()
        unique.delay()
        transaction.set_rollback(True)
    with pytest.raises(celery_once.AlreadyQueued):
        mixed.delay()
    unique.delay()
    assert [job.task for job in Job.objects.all()] == ["t.unique"]
