"""The smallest project that runs jobs: its tables, and a worker."""

import os

import dj_database_url

from jobs.conf import celery_settings

SECRET_KEY = "only for the benchmark"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "jobs"]
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"], conn_max_age=600)}
globals().update(celery_settings("jobs://", prefix="CELERY_"))
