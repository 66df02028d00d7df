"""The project's Celery app, where nobody hands it over: commands and checks."""

from __future__ import annotations

from celery import Celery, current_app


def celery_app() -> Celery | None:
    """The app that the project made; None if there is only Celery's fallback, which knows no task and no broker."""
    app: Celery = current_app._get_current_object()
    return None if app.main == "default" and not app.set_as_current else app
