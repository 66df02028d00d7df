"""The Celery app: every task of the project is transactional."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop", task_cls="jobs.task:Task")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
