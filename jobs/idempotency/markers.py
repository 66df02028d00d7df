"""Markers: an effect that is committed once per key, however many jobs or callers ask for it.

A marker is a row that is inserted in the transaction of its effects. If two transactions have the same key, the second
waits until the first commits (then it has nothing to do) or rolls back (then it goes on): the database's own unique
index decides, at every isolation level. For mails and HTTP calls see ``jobs.effect``; a lock of ``jobs.lock`` keeps
a second process from starting.
"""

from typing import Any

from django.db import OperationalError, connections
from django.db.models.functions import Now

from jobs import store
from jobs.conf import conf
from jobs.errors import Busy, IdempotencyMismatch
from jobs.lifecycle import transitions
from jobs.models import Job, Marker
from jobs.store import databases


def earlier(job: Job, fingerprint: str, wait: float | None = None) -> Job | None:
    """Leave the marker of a run, as the first statement of its transaction. Returns the job that left it before.

    Parameters:
        wait: seconds, by default ``JOBS["MARKER_WAIT"]``.

    Raises ``Busy`` as :func:`take`, and ``IdempotencyMismatch`` if the job that left the marker had other arguments.
    """
    assert job.marker_key is not None
    using = str(job._state.db)
    while not take(job.marker_key, Marker.Kind.TASK, using, job.pk, fingerprint, wait):
        marker = Marker.objects.using(using).filter(key=job.marker_key, kind=Marker.Kind.TASK).first()
        # Race: the marker may be pruned before it is read.
        if marker is None:
            continue
        if marker.fingerprint != fingerprint:
            rule = "a key must name all that makes two calls different"
            raise IdempotencyMismatch(f"the job {marker.job} had the key {marker.key!r} with other arguments: {rule}")
        # Only its id is left if a person deleted the job by hand.
        return Job.objects.using(using).filter(pk=str(marker.job)).first() or Job(pk=marker.job)
    return None


def is_left(job: Job) -> bool:
    """Whether the marker of a run is there already, and committed. It does not wait for an uncommitted one."""
    rows = Marker.objects.using(job._state.db).filter(key=job.marker_key, kind=Marker.Kind.TASK)
    return rows.exclude(expires_at__lte=Now()).exists()


def take(key: str, kind: str, using: str, job: Any, fingerprint: str = "", wait: float | None = None) -> bool:
    """Leave a marker in the current transaction; False: it is there already.

    Race: another transaction has an uncommitted marker of the same key. The INSERT waits for it to end. ``Busy``: it
    does not end in that time.
    """
    connection, keep, wait = connections[using], conf().MARKER_RETENTION, wait or conf().MARKER_WAIT
    expires_at = None if keep is None else transitions.now_plus(keep)
    values = {"fingerprint": fingerprint, "job": job, "created_at": Now(), "expires_at": expires_at}
    rows = Marker.objects.using(using).filter(key=key, kind=kind)
    try:
        is_new = store.of(using).insert_marker(key, kind, fingerprint, job, keep, wait)
        # An expired marker does not count. Race: one of several finds it expired; the rest wait for its transaction.
        late = rows.filter(expires_at__lte=Now())
        # First only read: an UPDATE would lock a marker that is still valid, and all its callers would wait.
        if is_new or not late.exists():
            return is_new
        with store.of(using).bounded(wait):
            return late.update(**values) == 1
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        # The transaction is aborted, even if the caller catches this.
        connection.needs_rollback = True
        raise Busy(f"another transaction is at {key!r}, and did not end within {wait:g} s") from exc
