"""Settings of the example's second service, with short clocks, and handlers that scenarios may add to it."""

import json
import os

from shop.loyalty.settings import *  # noqa: F403
from shop.loyalty.settings import INSTALLED_APPS, JOBS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.faults"]
JOBS = {**json.loads(os.environ.get("JOBS_TEST_SETTINGS", "{}")), **JOBS}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"jobs": {"handlers": ["console"], "level": "INFO", "propagate": True}},
}
