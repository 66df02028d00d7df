"""django-celery-beat: workers run the schedule in its tables. django-celery-results: what became of the jobs."""

import json
import subprocess
import sys
from collections import Counter
from datetime import timedelta

import pytest
from celery import current_app
from django.urls import reverse
from django.utils import timezone
from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask
from django_celery_results.models import TaskResult

from jobs.contrib.schedules.scheduler import Schedules
from jobs.models import Job, Schedule
from tests import tasks
from tests.helpers.harness import ROOT, Worker, effects, environment, wait_ended
from tests.helpers.servers import die_with_parent, wait_for
from tests.strangers.tasks import divides

pytestmark = pytest.mark.django_db(transaction=True)


def periodic(name: str, **more) -> PeriodicTask:
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    says = {"name": name, "task": "tests.tasks.effect", "args": json.dumps([name]), "interval": every}
    return PeriodicTask.objects.create(**says | more)


def test_workers_run_the_tables_without_beat():
    often, once = periodic("often"), periodic("once", one_off=True)
    late = periodic("late", start_time=timezone.now() + timedelta(days=1))
    over = periodic("over", expires=timezone.now() - timedelta(days=1))
    with Worker(concurrency=1):
        wait_for(lambda: effects()["often"] >= 3 and effects()["once"], 30, "they are called")
        often.args = json.dumps(["changed"])
        often.save()
        wait_for(lambda: effects()["changed"], 20, "a change is seen")
        often.refresh_from_db()
        often.enabled = False
        often.save()
        # A look at the tables, and a tick.
        wait_for(
            lambda: not schedule_of("often").next_tick or schedule_of("often").next_tick < timezone.now(),
            20,
            "it stops",
        )
        count = effects()
        often.enabled = True
        often.save()
        wait_for(lambda: effects()["changed"] > count["changed"], 20, "it goes on")
        wait_for(lambda: TaskResult.objects.filter(periodic_task_name="often").count() >= 3, 10, "told by its name")
    assert (effects()["once"], effects()["late"], effects()["over"]) == (1, 0, 0)
    for row in (often, once, late, over):
        row.refresh_from_db()
    # Whoever saves an old copy of the row writes an old count.
    assert often.total_run_count >= 1
    assert often.last_run_at is not None
    assert (once.enabled, late.enabled) == (False, True)
    ticks = Counter(
        job.headers["schedule_tick"] for job in Job.objects.all() if job.headers.get("periodic_task_name") == "often"
    )
    assert set(ticks.values()) == {1}


def test_a_clocked_task_whose_time_was_over_when_a_worker_saw_it_runs_once():
    """A person says "now" in the admin, or the workers were away; also if the row is edited to such a time."""
    now, later = (ClockedSchedule.objects.create(clocked_time=timezone.now() + timedelta(days=n)) for n in (0, 1))
    once = {"interval": None, "one_off": True}
    said, edited = periodic("said", clocked=now, **once), periodic("edited", clocked=later, **once)
    schedules = Schedules(current_app)
    assert schedules.run_once() == {"ticks": 1, "missed": 0}
    edited.clocked = ClockedSchedule.objects.create(clocked_time=timezone.now())
    edited.save()
    assert schedules.run_once() == {"ticks": 1, "missed": 0}
    assert schedules.run_once() == Schedules(current_app).run_once() == {"ticks": 0, "missed": 0}
    assert sorted(job.args[0] for job in Job.objects.all()) == ["edited", "said"]
    for row in (said, edited):
        row.refresh_from_db()
        assert not row.enabled


def schedule_of(name: str) -> Schedule:
    return Schedule.objects.get(pk=name)


def test_beat_beside_calls_nothing_twice(tmp_path):
    often, once = periodic("often"), periodic("once", one_off=True)
    command = [sys.executable, "-m", "celery", "-A", "shop", "beat", "-l", "INFO", "--max-interval", "1"]
    command += ["-S", "django", "--pidfile="]
    with (tmp_path / "log").open("ab") as log, Worker(concurrency=1):
        beat = subprocess.Popen(die_with_parent(*command), stdout=log, stderr=log, env=environment(), cwd=ROOT)
        try:
            wait_for(lambda: effects()["often"] >= 6 and effects()["once"], 30, (tmp_path / "log").read_text)
        finally:
            beat.terminate()
            beat.wait()
        wait_for(lambda: not Job.objects.exclude(state="succeeded").exists(), 20, "all ran")
        wait_for(lambda: TaskResult.objects.filter(periodic_task_name="often").count() >= 3, 10, "told by its name")
    assert effects()["once"] == 1
    often.refresh_from_db()
    once.refresh_from_db()
    assert (often.total_run_count >= 1, once.enabled) == (True, False)
    ticks = Counter(
        job.headers["schedule_tick"] for job in Job.objects.all() if job.headers.get("periodic_task_name") == "often"
    )
    assert set(ticks.values()) == {1}


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
