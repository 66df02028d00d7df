"""Settings of a project that has the core alone: the example needs the extensions.

The tables are those of the models that are there, whatever the migrations would make.
"""

from importlib.util import find_spec

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [app for app in INSTALLED_APPS if not app.startswith("shop") and find_spec(app)]
if "jobs.events" not in INSTALLED_APPS:
    INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "jobs.contrib.event_broker"]
MIGRATION_MODULES = {"jobs": None, "jobs_events": None, "jobs_event_broker": None}
ROOT_URLCONF = "tests.helpers.bare_urls"
