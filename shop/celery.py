"""The Celery app: every task of the project is transactional."""

import os

from celery import Celery
from django.conf import settings

from jobs.conf import celery_settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop", task_cls="jobs.task:Task")
# Your own CELERY_... settings win over the safe ones. Both are read when they are first needed.
app.config_from_object("django.conf:settings", namespace="CELERY")
app.add_defaults(lambda: celery_settings(settings.CELERY_BROKER_URL))
app.autodiscover_tasks()
