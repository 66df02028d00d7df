"""System checks: settings under which the promise does not hold, or is slow to.

``manage.py check`` runs what it can know; every worker runs all of them, and refuses to start on errors. A check
never raises. Each id stays what it is; all are silenced like Django's own, by ``SILENCED_SYSTEM_CHECKS``.
"""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage

from jobs.checks.base import Check
from jobs.checks.celery import check_celery, check_project_app
from jobs.checks.settings import (
    check_redaction,
    check_retention,
    check_routing,
    check_settings,
    check_sqlite,
    check_time_zones,
    check_transactions,
)
from jobs.checks.worker import check_tasks, check_worker

__all__ = [
    "check_celery",
    "check_project_app",
    "check_redaction",
    "check_retention",
    "check_routing",
    "check_settings",
    "check_sqlite",
    "check_tasks",
    "check_time_zones",
    "check_transactions",
    "check_worker",
    "for_worker",
]


def for_worker(worker: Any) -> list[CheckMessage]:
    """What a worker checks before it starts; Celery itself runs Django's checks and throws the result away."""
    every: tuple[Check, ...] = (
        check_settings,
        check_redaction,
        check_retention,
        check_sqlite,
        check_time_zones,
        check_transactions,
        check_routing,
    )
    found = [message for check in every for message in check()]
    if getattr(worker.app, "conf", None) is not None:
        found += [*check_celery(worker.app), *check_tasks(worker)]
    found += check_worker(worker)
    return [message for message in found if not message.is_silenced()]
