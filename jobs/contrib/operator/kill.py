"""End a running job from outside: first its row, which makes its run a zombie; then its process and transaction."""

import logging
import uuid
from functools import partial
from typing import Any

from django.db import OperationalError, transaction
from django.utils.translation import gettext

from jobs import store
from jobs.contrib.operator import orders
from jobs.contrib.operator.store import give
from jobs.contrib.sessions.seen import watched
from jobs.contrib.sessions.zombies import end_backends
from jobs.lifecycle import transitions
from jobs.lifecycle.run import report
from jobs.models import Job, State
from jobs.store import databases

PATIENCE = 2.0  #: Seconds to wait for a completion that holds the row; most commit at once.
TRIES = 3  #: How often the row is read again if another run began before this one could be ended.


class Held(Exception):
    """A run holds the row and does not end. The message is in the reader's language."""


def order(key: uuid.UUID, using: str, why: str) -> None:
    """On SQLite, tell the worker before the transaction: the body holds the write lock, so its process has to go first.

    Then the worker or this process ends the job, whichever is faster.
    """
    if store.of(using).has_one_writer:
        for job in Job.objects.using(using).filter(pk=key, state=State.RUNNING):
            _tell(job, why)


def kill(key: uuid.UUID, using: str, why: str) -> bool:
    """End the job ``cancelled``; when that is committed, its process is killed and its transaction ended.

    Race: the run ends by itself at this moment. Then either it or this function finds the row changed.

    Raises:
        Held: the row is still locked, although the transaction that held it should have ended.
    """
    # Race: a run that begins writes its own token into the row, once. Then the token that was read does not end it.
    for _ in range(TRIES):
        job = Job.objects.using(using).filter(pk=key).first()
        if job is None or job.state != State.RUNNING:
            # The worker may have been faster, because of the order.
            return job is not None and job.state == State.CANCELLED and (job.own_error or {}).get("type") == "Killed"
        if _end(job, using, why):
            transaction.on_commit(partial(_follow, job, using, why), using=using, robust=True)
            return True
    return False


def _end(job: Job, using: str, why: str) -> bool:
    error = transitions.error_entry("Killed", why, attempt=job.lease)
    held_by_run: list[Any] = []
    at = store.of(using)
    for is_last in (False, True):
        try:
            with at.bounded(PATIENCE), watched(using, job, PATIENCE / 3) as held_by_run:
                return transitions.cancel_running(job, error)
        except OperationalError as exc:
            if not databases.gave_up(exc):
                raise
        if held_by_run and not is_last:
            end_backends([(job.pk, job.lease)], using)
    raise Held(gettext("its row is locked by a transaction that does not end; try again in a moment"))


def _follow(job: Job, using: str, why: str) -> None:
    _tell(job, why)
    end_backends([(job.pk, job.lease)], using)
    report(job, using, "cancelled", why, logging.WARNING)


def _tell(job: Job, why: str) -> None:
    assert job.node_id is not None
    give(job.node_id, orders.KILL, f"the job {job.pk} is {why}", job.pk, job.lease)
