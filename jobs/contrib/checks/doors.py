"""The part of the checks in the core: a worker looks before it starts, and its supervisor asks the databases."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.doors import Attempt, Extension, Thread
from jobs.lifecycle.worker_state import worker_state


class Checks(Extension):
    def ready(self) -> None:
        from jobs.contrib.checks import system  # noqa: F401  (registers them)

    def starting(self, worker: Any) -> None:
        from jobs.contrib.checks import system

        found = system.for_worker(worker)
        for message in found:
            logger.log(message.level, str(message), extra={"action": "check", "check": message.id})
        if errors := [message for message in found if message.is_serious()]:
            texts = (f"({message.id}) {message.msg} {message.hint or ''}" for message in errors)
            raise ImproperlyConfigured("; ".join(texts))

    def threads(self) -> Iterable[Thread]:
        return [_ask_databases]


def _ask_databases(stopping: Event, attempt: Attempt) -> None:
    """The checks that query the databases. The worker's main process makes no query before it has forked."""
    attempt(_ask)
    stopping.wait()


def _ask() -> None:
    from jobs.contrib.checks import system

    for message in system.ask_databases(databases=conf().DATABASES):
        if not message.is_silenced():
            logger.log(message.level, str(message), extra=worker_state.about("check", check=message.id))
