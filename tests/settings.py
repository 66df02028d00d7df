"""The example's settings, with short clocks and the tests' own app."""

import json
import os
import tempfile

import django

from shop.settings import *  # noqa: F403
from shop.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "shop.loyalty", "tests"]
SECRET_KEY = "tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if DATABASES["default"]["ENGINE"].endswith("sqlite3") and "DATABASE_URL" not in os.environ:
    # A file, so that real workers share it.
    _directory = tempfile.mkdtemp(prefix="jobs-tests-")
    DATABASES["default"]["NAME"] = f"{_directory}/unused.sqlite3"
    DATABASES["default"]["TEST"] = {"NAME": f"{_directory}/test.sqlite3"}

if "JOBS_TEST_SQLITE_TIMEOUT" in os.environ:
    DATABASES["default"]["OPTIONS"]["timeout"] = float(os.environ["JOBS_TEST_SQLITE_TIMEOUT"])

#: What a scenario says of the database beside its URL.
DATABASES["default"].update(json.loads(os.environ.get("JOBS_TEST_DATABASE", "{}")))

#: Short clocks; JOBS_TEST_CLOCKS="default" runs with those that users get.
SHORT_CLOCKS = {
    "HEARTBEAT": 0.5,
    "DEAD_AFTER": 3.0,
    "POLL_INTERVAL": 0.2,
    "PRUNE_INTERVAL": 5.0,
}
JOBS = {} if os.environ.get("JOBS_TEST_CLOCKS") == "default" else dict(SHORT_CLOCKS)
JOBS.update(json.loads(os.environ.get("JOBS_TEST_SETTINGS", "{}")))
if _options := json.loads(os.environ.get("JOBS_TEST_BROKER_OPTIONS", "null")):
    CELERY_BROKER_TRANSPORT_OPTIONS = _options
EMAIL_TIMEOUT = 3
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"jobs": {"handlers": ["console"], "level": "INFO", "propagate": True}},
}
_BACKEND = {"BACKEND": "jobs.django_tasks.JobsBackend", "QUEUES": ["default", "mail"]}
TASKS = {
    "default": _BACKEND,
    "own": {**_BACKEND, "OPTIONS": {"atomic": False, "autoretry_for": [OSError], "default_retry_delay": 0}},
    "immediate": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"},
}
if django.VERSION < (6,):
    TASKS["immediate"] = {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"}
#: Celery's own settings, for the workers that a scenario starts.
globals().update(
    {f"CELERY_{name.upper()}": value for name, value in json.loads(os.environ.get("JOBS_TEST_CELERY", "{}")).items()}
)
if _log := os.environ.get("JOBS_TEST_LOG"):
    LOGGING["formatters"] = {"json": {"()": "tests.helpers.json_lines.Formatter"}}
    LOGGING["handlers"]["json"] = {"class": "logging.FileHandler", "filename": _log, "formatter": "json"}
    LOGGING["loggers"]["jobs"] |= {"handlers": ["console", "json"], "level": "DEBUG"}
