"""Apps and workers for the system checks."""

from __future__ import annotations

from types import SimpleNamespace

import celery
from celery import Celery
from django.core.checks import CheckMessage

from jobs.conf import celery_settings


def body() -> None:
    """Of every task here."""


def app(url: str = "memory://", **settings) -> Celery:
    made = Celery("checked", task_cls="jobs.task:Task", set_as_current=False, fixups=[])
    made.conf.update({**celery_settings(url), **settings})
    return made


def worker(of: Celery | None = None, **more) -> SimpleNamespace:
    pool = {"pool_cls": "celery.concurrency.prefork:TaskPool", "pool_start_method": "fork", "concurrency": 2}
    return SimpleNamespace(**{"app": of or app(), "time_limit": None, **pool, **more})


def ids(messages: list[CheckMessage]) -> list[str]:
    for message in messages:
        assert message.hint
    return [message.id for message in messages]


class Plain(celery.Task):
    """Somebody's base class from before."""


class Router:
    """``routes``: the database of each app label; ``kept_out``: those that no table of ours may be in."""

    def __init__(self, routes: dict[str, str], kept_out: tuple[str, ...] = ()) -> None:
        self.routes, self.kept_out = routes, kept_out

    def db_for_write(self, model, **hints):
        return self.routes.get(model._meta.app_label)

    def allow_migrate(self, db, app_label, **hints):
        return False if db in self.kept_out and app_label == "jobs" else None
