import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.loyalty.settings")

app = Celery("loyalty", task_cls="jobs.task:Task")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="handlers")
