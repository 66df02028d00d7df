"""Settings of the example's second service, with short clocks."""

import json
import os

from shop.loyalty.settings import *  # noqa: F403
from shop.loyalty.settings import JOBS

JOBS = {**json.loads(os.environ.get("JOBS_TEST_SETTINGS", "{}")), **JOBS}
