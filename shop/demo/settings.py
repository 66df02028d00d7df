"""Settings of the demo's own process, which reads the databases of both services."""

import os

from shop.settings import *  # noqa: F403
from shop.settings import DATABASES, INSTALLED_APPS, JOBS, database

INSTALLED_APPS = [*INSTALLED_APPS, "shop.loyalty"]
if JOBS["EVENT_BROKER"]:
    DATABASES = {**DATABASES, "loyalty": database(os.environ["LOYALTY_DATABASE_URL"])}
