"""The entries of the schedule: Celery's own (``beat_schedule``, ``add_periodic_task``) and tasks with ``every=``.

``jobs.calling.periodic`` adds those of django-celery-beat's tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery
from celery.schedules import crontab
from django.apps import apps

from jobs.calling import periodic
from jobs.calling.entry import Entry
from jobs.conf import conf, reads_rows


def gather(app: Celery, asks_tables: bool = True) -> tuple[dict[str, Entry], list[str]]:
    """The entries by their names, and what is wrong with those that are left out, a sentence each."""
    if conf().SCHEDULES is None or app.conf.task_always_eager:
        return {}, []
    found: dict[str, Entry] = {}
    wrong: list[str] = []
    for name, given in _given(app):
        try:
            found[name] = Entry(app, name, given)
        except Exception as exc:
            wrong.append(f"{name!r}: {exc!r}" if isinstance(exc, KeyError) else f"{name!r}: {exc}")
    if asks_tables and has_tables():
        periodic.merge(app, found, wrong)
    return found, wrong


def has_tables() -> bool:
    """Whether django-celery-beat's tables are a source, too."""
    return conf().SCHEDULES == "all" and apps.is_installed("django_celery_beat")


def _given(app: Celery) -> Iterator[tuple[str, dict[str, Any]]]:
    """A later one of the same name wins."""
    for task in list(app.tasks.values()):
        if (every := getattr(task, "every", None)) is not None and getattr(task, "is_transactional", False):
            yield task.name, {"task": task.name, "schedule": every}
    is_kept = app.conf.result_backend not in (None, "", "disabled", "disabled://") and not reads_rows(app)
    if is_kept and app.conf.result_expires and not app.backend.supports_autoexpire:
        # As beat does: where results are kept elsewhere, somebody has to delete them.
        options = {"expires": 12 * 3600}
        name = "celery.backend_cleanup"
        yield name, {"task": name, "schedule": crontab("0", "4", "*"), "options": options}
    for name, given in (app.conf.beat_schedule or {}).items():
        yield str(name), dict(given)
