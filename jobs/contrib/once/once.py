"""once(): do something for the first caller of a key alone; and the keys that are made of parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.transaction import TransactionManagementError

from jobs.idempotency.keys import checked
from jobs.idempotency.markers import take
from jobs.lifecycle.run import current_job
from jobs.models import Marker
from jobs.models.values import plain
from jobs.store import databases


@contextmanager
def once(*key: Any, using: str | None = None) -> Iterator[bool]:
    """Do something once: true for the first transaction that commits with this key, false for all others.

    ::

        with transaction.atomic(), once("welcome", user.pk) as first:
            if first:
                user.credits += 10

    The marker is part of the surrounding transaction. A second caller waits for the first, at most
    ``JOBS["MARKER_WAIT"]`` seconds. An exception that leaves the block has the innermost ``atomic()`` around it rolled
    back, even if the caller catches it: a marker without its effect must not be committed.

    Parameters:
        key: text and whole numbers; ``once("welcome", 5)`` is ``"welcome:5"``.
        using: the database alias; by default the one of the running job, else the one for jobs.

    Raises:
        TransactionManagementError: there is no transaction around it.
        Busy: the first transaction does not end; in a task's body the job comes back later, and uses no attempt.
        TypeError, ValueError: the key cannot be kept.
    """
    name = joined(key, "once()")
    job = current_job()
    alias = using or (job._state.db if job is not None else None) or databases.job_alias(None)
    connection = connections[alias]
    # For a plain call in a TestCase the transaction of the test is enough.
    if not (connection.in_atomic_block if job is None else databases.in_transaction(alias)):
        raise TransactionManagementError(
            "once() is part of a transaction, and there is none: write `with transaction.atomic(), once(...)`, or "
            "leave atomic=False out of the task"
        )
    first = take(name, Marker.Kind.ONCE, alias, job and job.pk)
    try:
        yield first
    except BaseException:
        if first:
            connection.needs_rollback = True
        raise


def joined(parts: tuple[Any, ...], what: str) -> str:
    """One key from parts, ``("welcome", 5)`` -> ``"welcome:5"``; two different lists of parts never make the same key.

    Raises as :func:`checked`, and ``TypeError`` if there is no part, or a part is not text or a whole number.
    """
    if not parts:
        raise TypeError(f"{what} needs a key")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise TypeError(f"{what}: {part!r} cannot be part of a key: pass text or a whole number, such as user.pk")
    if len(parts) == 1:
        return checked(plain(parts[0]), what)
    return checked(":".join(plain(part).replace("\\", "\\\\").replace(":", "\\:") for part in parts), what)
