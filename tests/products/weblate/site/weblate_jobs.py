"""The same, and the lines that the page "Weblate on jobs" asks for."""

from weblate_stock import *  # noqa: F403
from weblate_stock import CELERY_BROKER_URL, INSTALLED_APPS  # type: ignore[attr-defined]

from jobs.conf import celery_settings

INSTALLED_APPS += ["jobs"]
globals().update(celery_settings(CELERY_BROKER_URL, prefix="CELERY_"))
JOBS = {"APPS": ["weblate"], "TASKS": {"weblate.*": {"atomic": False}}}
