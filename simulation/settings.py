"""Settings of the simulated cluster: the defaults, but for what says where it is."""

import os

import dj_database_url

from jobs.conf import celery_settings

SECRET_KEY = "only for the simulation"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "jobs", "simulation"]
DATABASES = {
    "default": {
        **dj_database_url.parse(os.environ["SIMULATION_DATABASE_URL"]),
        "ENGINE": "simulation.backend",
        "CONN_MAX_AGE": None,
    }
}
globals().update(celery_settings("jobs://", prefix="CELERY_"))
CELERY_TASK_DEFAULT_QUEUE = "celery"
LOGGING_CONFIG = None
