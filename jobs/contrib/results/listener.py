"""A caller that waits long for a result is told of the end."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable
from contextlib import ExitStack

from django.db import Error

from jobs.contrib.listening.news import CHANNEL, send
from jobs.contrib.listening.notifications import Notifications
from jobs.contrib.results.said import answers_until
from jobs.models import Job
from jobs.store import databases, of

#: The channel for callers that wait for results; the payload is the job's id in Celery.
ENDED = "jobs_ended"
#: The payload that says: this caller waits for a result. Workers announce each end for so many seconds after it, and
#: at no other time.
WAITS, ANSWERS = "?", 3.0


def answer(jobs: Iterable[Job], using: str) -> None:
    """Tell callers that wait for results that jobs have ended."""
    if of(using).has_notify:
        send(using, ENDED, [job.task_id for job in jobs])


def heard(told: Collection[str] | None) -> None:
    """The supervisor was notified: a caller may wait for results."""
    if told and WAITS in told:
        answers_until[0] = time.monotonic() + ANSWERS


class ResultListener(ExitStack):
    """Sleeps until one of some jobs may have ended: LISTEN on a connection of its own, if the database has it."""

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias, self._asked = alias, 0.0
        self._told: Notifications | None = None

    def sleep(self, seconds: float, ids: Container[str]) -> None:
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0 and of(self._alias).has_notify:
                if self._hears(min(left, ANSWERS / 2), ids):
                    return
        except Error:
            # The next poll finds what has ended.
            self._told = None
        time.sleep(max(0.0, deadline - time.monotonic()))

    def _hears(self, seconds: float, ids: Container[str]) -> bool:
        if self._told is None:
            self._told, self._asked = Notifications(self.enter_context(databases.apart(self._alias)), ENDED), 0.0
        if time.monotonic() - self._asked > ANSWERS / 2:
            self._asked = time.monotonic()
            self._told.execute(f"NOTIFY {CHANNEL}, '{WAITS}'")
        return self._told.hears(seconds, ids)
