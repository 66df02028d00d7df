"""Two apps called ``jobs`` in one project: ours takes another label, and everything works."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.harness import ROOT
from tests.helpers.servers import die_with_parent, wait_for

SCRIPT = """
import django; django.setup()
from django.core.management import call_command
from tests import tasks
from jobs.models import Job
assert Job._meta.app_label == "background_jobs"
print(tasks.noop.delay().id)
"""

PAGES = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from jobs.models import Job
client = Client()
client.force_login(User.objects.create_superuser("root"))
job = Job.objects.get()
assert client.get(reverse("admin:background_jobs_job_changelist")).status_code == 200
page = client.get(reverse("admin:background_jobs_job_change", args=[job.pk]))
assert page.status_code == 200 and "succeeded" in page.content.decode()
for name in ("overview_changelist", "dashboard"):
    assert client.get(reverse(f"admin:background_jobs_{name}")).status_code == 200
client.post(reverse("admin:background_jobs_job_operate_one", args=[job.pk]), {"operation": "retry"})
print(job.state)
"""


@pytest.mark.slow
def test_another_label(tmp_path):
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.helpers.relabelled",
        "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
        "CELERY_BROKER_URL": "jobs://",
        "PYTHONPATH": str(ROOT),
        "JOBS_TEST_SETTINGS": "{}",
    }

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("manage.py", "migrate", "-v0")
    run("manage.py", "check")
    run("manage.py", "makemigrations", "background_jobs", "--check", "--dry-run")
    key = run("-c", SCRIPT).strip()
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "1", "--without-mingle"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(die_with_parent(*command), cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: '"succeeded": 1' in run("manage.py", "jobs", "status", "--json"), 30, f"job {key}", step=0.5)
    finally:
        worker.terminate()
        worker.wait(20)
    assert run("-c", PAGES).strip() == "succeeded"
