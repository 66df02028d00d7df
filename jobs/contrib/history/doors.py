"""The part of history in the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models.signals import post_migrate

from jobs.doors import Extension


class History(Extension):
    instead = {"jobs.store.postgresql.PostgreSQL": "jobs.contrib.history.store.Divided"}

    def ready(self) -> None:
        post_migrate.connect(_complete, dispatch_uid="jobs.contrib.history.complete")

    def prune(self, using: str, budget: float) -> Mapping[str, int]:
        from jobs.contrib.history import days

        return {"jobs": days.prune(using, budget)}


def _complete(app_config: Any, using: str, **kwargs: Any) -> None:
    from django.db import router

    from jobs.contrib.history import days
    from jobs.models import Job

    # Django's ``flush`` sends the signal as well, without a plan.
    if app_config.label == Job._meta.app_label and "plan" in kwargs and router.allow_migrate_model(using, Job):
        days.complete(using)
