"""Access to services with databases of their own: ``jobs.contrib.event_broker``, if it is installed."""

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobs import extensions
from jobs.conf import celery_app, conf


class BrokerError(Exception):
    """The broker is away, or refuses."""


def service() -> str:
    """The name of this service, as other services know it."""
    app = celery_app()
    return conf().SERVICE or (app and app.main) or "jobs"


def publisher() -> Any:
    """The module ``publisher`` of the extension that sends events to other services; None: there is no broker."""
    if conf().EVENT_BROKER is None:
        return None
    found = next(extensions.modules("publisher"), None)
    if found is None:
        raise ImproperlyConfigured("JOBS['EVENT_BROKER'] is set, and jobs.contrib.event_broker is not installed")
    return found
