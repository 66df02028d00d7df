"""A running job goes to wait for something, and the first of those that wait for it is woken."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from django.db import connections, transaction

from jobs import store
from jobs.contrib.listening import news
from jobs.contrib.waking.store import wake_first
from jobs.lifecycle import wakeups
from jobs.lifecycle.transitions import now_plus, wait, waiting
from jobs.models import Job
from jobs.store import databases


def wait_for(job: Job, what: str, seconds: float, entry: dict[str, Any]) -> bool:
    """What it needs is busy; no counter changes. It is tried again after that time, or by :func:`wake`."""
    return wait(job, now_plus(seconds), entry, is_kept=False, waits_for=what)


def suspend(job: Job, run_at: Any, waits_for: str | None, error: dict[str, Any] | None, expires_at: Any) -> bool:
    """Its body waits for a time or for something to come (:func:`wake`); no counter rises."""
    # It has started, so another job with its unique key may wait.
    free: dict[str, Any] = {"unique_key": None} if job.unique_key is not None and job.unique_until == "started" else {}
    # It made progress: earlier crashes are no sign that it never ends.
    return wait(job, run_at, error, waits_for=waits_for, expires_at=expires_at, crashes=0, node_losses=0, **free)


def wake(what: str, using: str) -> bool:
    """Let the first of the jobs that wait for this go on; False: no job waits here.

    Race: two callers see the same job. Then one of them wakes no job. For a lock that is enough: it has one holder.
    """
    told = _told(using)
    write = partial(wake_first, using, what, waiting(None), told)
    if (queue := databases.again_if_moved(using, write, is_one=True)) is None:
        return False
    if told is None:
        transaction.on_commit(lambda: wakeups.notify(using, [queue]), using=using, robust=True)
    return True


def _told(using: str) -> tuple[str, str] | None:
    """The notification that the statement sends itself if it commits; None: :func:`wakeups.notify` must.

    Returns:
        The channel, and what comes behind the name of the queue.
    """
    at_once = store.of(using).has_notify and connections[using].get_autocommit() and news.is_due(using, "")
    return (news.CHANNEL, str(news.News("", 1, random.getrandbits(63)))) if at_once else None
