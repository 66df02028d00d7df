"""The worker's Celery app: the one of the tests, of which ``plugin.start_worker`` tells the settings."""

import json
import os

from celery.contrib.testing.app import TestApp

if "DJANGO_SETTINGS_MODULE" in os.environ:
    import django

    django.setup()

app = TestApp(
    config={**json.loads(os.environ["CELERY_SUITE_APP"]), "include": ["t.integration.tasks"]},
    set_as_current=True,
    enable_logging=True,
    task_cls="jobs.task:Task" if "DJANGO_SETTINGS_MODULE" in os.environ else None,
)
app.set_default()

from t.integration.tasks import ClassBasedAutoRetryTask  # noqa: E402

app.register_task(ClassBasedAutoRetryTask)
