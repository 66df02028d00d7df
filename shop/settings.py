"""Settings of the example. Without environment variables it needs nothing but SQLite."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url

from jobs.conf import celery_settings

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("SECRET_KEY", "only for the demo and the tests")
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "jobs",
    "jobs.events",
    "jobs.contrib.event_broker",
    "jobs.contrib.kept_logs",
    "jobs.contrib.saved_filters",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def database(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {**dj_database_url.parse(url), "CONN_MAX_AGE": 60}
    if found["ENGINE"].endswith("sqlite3"):
        # Writers wait for each other instead of failing; readers never wait.
        found["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
    return found


DATABASES = {"default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'shop.sqlite3'}")}

# Safe settings for the broker in use; your own CELERY_... settings go below this line and win.
globals().update(celery_settings(os.environ.get("CELERY_BROKER_URL") or "jobs://", prefix="CELERY_"))
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("CELERY_TASK_DEFAULT_QUEUE") or "celery"

CACHE_URL = os.environ.get("CACHE_URL")
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": CACHE_URL}
    if CACHE_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}

EMAIL_HOST = os.environ.get("EMAIL_HOST", "localhost")
EMAIL_PORT = int(os.environ.get("EMAIL_PORT", "25"))
#: A mail server that hangs holds up a worker, and the lock on the customer's row, for so many seconds at the most.
EMAIL_TIMEOUT = 5

PAYMENT_URL = os.environ.get("PAYMENT_URL", "http://localhost:8001")
#: Seconds for each answer of the payment provider.
PAYMENT_TIMEOUT = 5

#: Who has not fetched an order after this time is reminded.
FETCH_WITHIN = timedelta(seconds=float(os.environ.get("FETCH_WITHIN", 7 * 24 * 3600)))

DEFAULT_FROM_EMAIL = "The shop <shop@example.com>"

#: With a RabbitMQ for events each service has a database of its own; without one they share that of the shop.
JOBS: dict[str, object] = {"SERVICE": "shop", "EVENT_BROKER": os.environ.get("EVENT_BROKER_URL") or None}
#: Tasks of django.tasks are jobs, too.
TASKS = {"default": {"BACKEND": "jobs.django_tasks.JobsBackend"}}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"console": {"format": "{asctime} {levelname} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "console"}},
    # They do not propagate, or the worker's own handler would write each line a second time.
    "loggers": {
        "jobs": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL") or "WARNING", "propagate": False}
    },
}

if os.environ.get("JOBS_SYNC_POINTS"):
    # The demo and the tests let processes die at chosen moments; no project needs this.
    from shop import points

    points.arm(os.environ["JOBS_SYNC_POINTS"], Path(os.environ["JOBS_SYNC_DIR"]))
