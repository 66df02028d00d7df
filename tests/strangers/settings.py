"""The tests' settings, with the apps of others."""

import os

import structlog

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, JOBS, LOGGING

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django_celery_beat",
    "django_celery_results",
    "post_office",
    "djcelery_email",
    "celery_progress",
    "django_structlog",
    "health_check",
    "tests.strangers",
]
JOBS["TASKS"] = {"post_office.*": {"atomic": False}, **JOBS.get("TASKS", {})}

CELERY_RESULT_BACKEND = os.environ.get("STRANGERS_RESULTS") or "django-db"
CELERY_RESULT_EXTENDED = True

#: Where all mail goes, a file for each connection.
EMAIL_FILE_PATH = os.environ.get("STRANGERS_MAILS", "/nonexistent")
FILES = "django.core.mail.backends.filebased.EmailBackend"
POST_OFFICE = {"BACKENDS": {"default": FILES}, "CELERY_ENABLED": True, "MAX_RETRIES": 0}
CELERY_EMAIL_BACKEND = "tests.strangers.mail.RefusesOnce"
CELERY_EMAIL_TASK_CONFIG = {"default_retry_delay": 0}

DJANGO_STRUCTLOG_CELERY_ENABLED = True
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.JSONRenderer(),
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
)
LOGGING["loggers"]["django_structlog"] = {"handlers": ["console"], "level": "INFO", "propagate": False}

if "STRANGERS_SENTRY" in os.environ:
    from tests.strangers import sentry

    sentry.init()
