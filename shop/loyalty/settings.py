"""Settings of the second service: those of the shop, but for what is its own."""

import os

from shop.settings import *  # noqa: F403
from shop.settings import BASE_DIR, INSTALLED_APPS, JOBS, database

INSTALLED_APPS = ["shop.loyalty" if app == "shop" else app for app in INSTALLED_APPS]
ROOT_URLCONF = "shop.loyalty.urls"

JOBS = {**JOBS, "SERVICE": "loyalty"}
if JOBS["EVENT_BROKER"]:
    # Without it events are rows of one database, that of the shop.
    url = os.environ.get("LOYALTY_DATABASE_URL") or f"sqlite:///{BASE_DIR / 'loyalty.sqlite3'}"
    DATABASES = {"default": database(url)}
#: Its handlers' jobs are for its own workers, also where both share a database.
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("LOYALTY_QUEUE") or "loyalty"
