"""Settings of the second service: those of the shop, and some of its own."""

import os

from shop.settings import *  # noqa: F403
from shop.settings import BASE_DIR, INSTALLED_APPS, JOBS, database

INSTALLED_APPS = ["shop.loyalty" if app == "shop" else app for app in INSTALLED_APPS]
ROOT_URLCONF = "shop.loyalty.urls"

JOBS = {**JOBS, "SERVICE": "loyalty"}
if JOBS["EVENT_BROKER"]:
    # Without a broker for events, both services share the database of the shop.
    url = os.environ.get("LOYALTY_DATABASE_URL") or f"sqlite:///{BASE_DIR / 'loyalty.sqlite3'}"
    DATABASES = {"default": database(url)}
#: Only its own workers run its handlers, even if both services share a database.
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("LOYALTY_QUEUE") or "loyalty"
