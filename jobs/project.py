"""The project's Celery app, where nobody hands it over: commands and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery, current_app


def celery_app() -> Celery | None:
    """The app that the project made; None if there is only Celery's fallback, which knows no task and no broker."""
    app: Celery = current_app._get_current_object()
    return None if app.main == "default" and not app.set_as_current else app


def has_results_elsewhere(task: str, options: Mapping[str, Any]) -> bool:
    """Whether results are kept by a backend that does not read the rows, and that of this call as well."""
    app = celery_app()
    if app is None or not app.conf.result_backend or app.conf.result_backend.startswith("jobs."):
        return False
    return not options.get("ignore_result", getattr(app.tasks.get(task), "ignore_result", False))
