"""guard(): the current state of a row, which no other transaction can change until this one ends.

Others can still read the row, and it is no lock across transactions (``jobs.contrib.locks``). Under a guard on a
row that other requests wait for, such as the user at a login, send no mail and call no provider; guard a row of your
own, and set a timeout.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connections
from django.db.models import Model, QuerySet
from django.db.transaction import TransactionManagementError

from jobs import store
from jobs.errors import Busy
from jobs.lifecycle.run import current_run
from jobs.store import databases
from jobs.store.sqlite import SQLite


@contextmanager
def guard(
    rows: Any,
    *,
    nowait: bool = False,
    skip_locked: bool = False,
    of: Sequence[str] = (),
    no_key: bool = False,
    using: str | None = None,
    **lookup: Any,
) -> Iterator[Any]:
    """Lock rows until the transaction ends, and read them as they are then (``SELECT ... FOR UPDATE``).

    ::

        with guard(User, pk=user_id) as user:               # one row
        with guard(Order.objects.filter(batch=7)) as orders:  # a list, locked in the order of their keys

    On SQLite, which has no row locks, it takes the database's write lock, so the guarantee holds there as well.

    Parameters:
        rows: a model (or a manager) with a ``lookup`` for one row, or a queryset for a list of rows.
        nowait: raise ``Busy`` instead of waiting for another transaction's lock.
        skip_locked: leave locked rows out; a single row that is locked (or not there) is ``None``.
        of, no_key: as of Django's ``select_for_update``.
        using: the database alias of a model; by default where its writes go.

    Raises:
        TransactionManagementError: there is no transaction, so the lock would be gone at once.
        Busy: with ``nowait``; in a task's body the job comes back later, and uses no attempt.
        Model.DoesNotExist: there is no such row; the job ends ``failed``, unless ``autoretry_for`` names it.
        TypeError: an instance, which may be stale: pass its class and key.
    """
    if isinstance(rows, Model):
        cure = f"write guard({type(rows).__name__}, pk={rows.pk!r}), and use what it yields"
        raise TypeError(f"guard() reads the row anew: {cure}")
    if is_list := isinstance(rows, QuerySet):
        if lookup or using:
            raise TypeError("guard(queryset) takes no lookup and no using=: filter the queryset")
        # All transactions that lock several rows lock them in the same order.
        # What is sliced keeps its order: that decides which rows it is.
        found = rows if rows.query.is_sliced else rows.order_by("pk")
    else:
        manager = getattr(rows, "_default_manager", rows)
        if not hasattr(manager, "using"):
            raise TypeError(f"guard() takes a model and a lookup, or a queryset, and not {rows!r}")
        found = manager.using(using).filter(**lookup).order_by()
    found = found.select_for_update(nowait=nowait, skip_locked=skip_locked, of=tuple(of), no_key=no_key)
    model, connection = found.model, connections[found.db]
    # For a plain call in a TestCase the transaction of the test is enough.
    if not (databases.in_transaction(found.db) if current_run() else connection.in_atomic_block):
        raise TransactionManagementError(
            "guard() holds until the transaction ends, and there is none: write `with transaction.atomic(), "
            "guard(...)`, or leave atomic=False out of the task"
        )
    if isinstance(at := store.of(found.db), SQLite):
        _lock_writer(at, model)
    try:
        locked = list(found if is_list else found[:2])
    except OperationalError as exc:
        if not databases.is_busy(exc):
            raise
        # The transaction is aborted, even if the caller catches this.
        connection.needs_rollback = True
        raise Busy(f"another transaction has locked {model._meta.label} {lookup or ''}".rstrip()) from exc
    if not is_list and len(locked) > 1:
        raise model.MultipleObjectsReturned(f"guard({model.__name__}) found several rows: pass a queryset")
    if not is_list and not locked and not skip_locked:
        raise model.DoesNotExist(f"there is no {model._meta.label} with {lookup}")
    yield locked if is_list else next(iter(locked), None)


def _lock_writer(at: SQLite, model: type[Model]) -> None:
    """SQLite has no row locks: take the write lock of the whole database."""
    mode = at.connection.settings_dict["OPTIONS"].get("transaction_mode") or ""
    if mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        # BEGIN did not take the write lock; an UPDATE that changes nothing does.
        name, key = map(at.connection.ops.quote_name, (model._meta.db_table, model._meta.pk.column))
        with at.connection.cursor() as cursor:
            cursor.execute(f"UPDATE {name} SET {key} = {key} WHERE 0")
