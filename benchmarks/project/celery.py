"""The Celery app of the peers that are Celery or use it."""

from celery import Celery
from django.conf import settings

app = Celery("benchmarks", **settings.PEER.app_options())
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(settings.PEER.app_settings())
app.autodiscover_tasks(["benchmarks.project"])
