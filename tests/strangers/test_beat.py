"""django-celery-beat: the schedule in the database calls jobs. django-celery-results: what became of them."""

import json
import subprocess
import sys

import pytest
from django.urls import reverse
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_celery_results.models import TaskResult

from jobs.models import Job
from tests import tasks
from tests.harness import ROOT, Worker, effects, environment, wait_ended
from tests.servers import die_with_parent, wait_for
from tests.strangers.tasks import divides

pytestmark = pytest.mark.django_db(transaction=True)


def periodic(name: str, **more) -> PeriodicTask:
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    return PeriodicTask.objects.create(
        name=name, task="tests.tasks.effect", args=json.dumps([name]), interval=every, **more
    )


def test_beat_calls_what_the_schedule_says(tmp_path):
    often, once = periodic("often"), periodic("once", one_off=True)
    command = [sys.executable, "-m", "celery", "-A", "shop", "beat", "-l", "INFO", "--max-interval", "1"]
    command += ["-S", "django", "--pidfile="]
    with (tmp_path / "log").open("ab") as log, Worker(concurrency=1):
        beat = subprocess.Popen(die_with_parent(*command), stdout=log, stderr=log, env=environment(), cwd=ROOT)
        try:
            wait_for(lambda: effects()["often"] >= 3 and effects()["once"], 30, (tmp_path / "log").read_text)
        finally:
            beat.terminate()
            beat.wait()
        wait_for(lambda: not Job.objects.exclude(state="succeeded").exists(), 20, "all ran")
        wait_for(lambda: TaskResult.objects.filter(periodic_task_name="often").count() >= 3, 10, "told by its name")
    assert effects()["once"] == 1
    often.refresh_from_db()
    once.refresh_from_db()
    # Beat writes them when it ends, and every three minutes.
    assert (often.total_run_count >= 3, once.enabled) == (True, False)


def test_run_now_of_the_admin_makes_a_job(admin_client):
    task = periodic("now")
    data = {"action": "run_tasks", "_selected_action": [task.pk]}
    answer = admin_client.post(reverse("admin:django_celery_beat_periodictask_changelist"), data, follow=True)
    assert "successfully run" in answer.content.decode()
    job = Job.objects.get()
    with Worker(concurrency=1):
        wait_ended(job.pk)
        wait_for(lambda: TaskResult.objects.filter(task_id=job.task_id, periodic_task_name="now"), 10, "the result")


def test_results_are_those_of_the_jobs():
    with Worker(concurrency=1):
        well, ill = tasks.add.delay(1, 2), divides.delay(1, 0)
        wait_ended(well.id, ill.id)
        assert well.get(timeout=10) == 3
        with pytest.raises(ZeroDivisionError):
            ill.get(timeout=10)
        kept = TaskResult.objects.get(task_id=well.id)
        assert (kept.status, kept.task_name, kept.task_args) == ("SUCCESS", "tests.tasks.add", '"(1, 2)"')
        assert kept.worker
        failed = TaskResult.objects.get(task_id=ill.id)
        assert failed.status == "FAILURE"
        assert "ZeroDivisionError" in failed.traceback
