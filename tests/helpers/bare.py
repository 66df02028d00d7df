"""Settings of a project that has the core alone: the example needs the extensions.

The tables are those of the models that are there, whatever the migrations would make.
"""

import os
from importlib.util import find_spec

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [app for app in INSTALLED_APPS if not app.startswith("shop") and find_spec(app)]
EVENTS = "jobs.contrib.listening", "jobs.contrib.messages", "jobs.contrib.operations"
#: What these apps are part of.
NEEDED = {
    "jobs.events": EVENTS,
    "jobs.contrib.event_broker": (*EVENTS, "jobs.contrib.shared_connections", "jobs.events"),
    "jobs.contrib.kept_logs": ("jobs.contrib.redaction", "jobs.signals"),
}
INSTALLED_APPS = [app for app in INSTALLED_APPS if all(map(find_spec, NEEDED.get(app, ())))]
LABELS = ("jobs", "jobs_events", "jobs_event_broker", "jobs_kept_logs", "jobs_saved_filters")
MIGRATION_MODULES = dict.fromkeys(LABELS)
if not find_spec("jobs.contrib.transport"):
    # The database is a broker by that extension.
    CELERY_BROKER_URL = os.environ.get("JOBS_TEST_BROKER", "memory://")
    if CELERY_BROKER_URL.startswith("redis"):
        # One for each process of the run: their workers would take each other's messages.
        process = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        CELERY_BROKER_URL = f"{CELERY_BROKER_URL.rpartition('/')[0]}/{process}"
if not find_spec("jobs.contrib.pruning"):
    JOBS = {key: value for key, value in JOBS.items() if key != "PRUNE_INTERVAL"}  # noqa: F405
ROOT_URLCONF = "tests.helpers.bare_urls"
