"""``app.Task`` of the apps that ``JOBS["APPS"]`` names inherits from ours, from the package's first access on.

At that access Celery reads ``task_cls``. The package's tasks and base classes are made later. A signal would come too
late: Celery sends none before a package's modules are imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from celery import Celery
from celery.utils.imports import symbol_by_name
from django.conf import ENVIRONMENT_VARIABLE, settings

_create = Celery.create_task_cls


def is_named(app: Celery) -> bool:
    """Whether the settings name the app. If they are wrong, the system checks report it, not the import of a task."""
    given = getattr(settings, "JOBS", None) if _are_there() else None
    return isinstance(given, Mapping) and app.main in (given.get("APPS") or ())


def _are_there() -> bool:
    """Whether the settings can be read: not while their own module is being imported."""

    module = sys.modules.get(os.environ.get(ENVIRONMENT_VARIABLE, ""))
    is_loading = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return settings.configured or (ENVIRONMENT_VARIABLE in os.environ and not is_loading)


def create_task_cls(self: Celery) -> Any:
    if is_named(self):
        base, ours = symbol_by_name(self.task_cls), import_module("jobs.task").Task
        if not issubclass(base, ours):
            # The package's own class comes first, and its ``super()`` calls reach ours.
            is_own = not issubclass(ours, base)
            self.task_cls = type(base.__name__, (base, ours), {"abstract": True}) if is_own else ours
    return _create(self)


Celery.create_task_cls = create_task_cls
