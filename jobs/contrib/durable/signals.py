"""Signals: something has happened that a durable task waits for.

A signal is a row of the sender's transaction. The sender looks for waiting jobs after its commit, and a job looks for
its signal after the commit of its wait: one of the two sees the other. A process may die before it looks. So the
workers look again at the signals of the last minute.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Concat

from jobs.conf import conf
from jobs.conf.syncpoints import reach
from jobs.contrib.durable import store
from jobs.contrib.durable.models import NOT_LOOKED, Signal
from jobs.contrib.waking import waking
from jobs.lifecycle.transitions import now_plus
from jobs.models.values import MAX_KEY, check_size, jsonable
from jobs.store import databases

#: What ``Job.waits_for`` begins with while a job waits for a signal: before its key.
SIGNAL = "signal:"
#: Seconds for which the workers look again whether a job waits for a signal; and how many keys are named.
LOOKED_AFTER, MOST = 60.0, 10_000


def check_key(key: Any) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or "\0" in key:
        said = f"{len(key)} characters" if isinstance(key, str) and len(key) > MAX_KEY else repr(key)
        raise ValueError(f"the key of a signal is text of 1 to {MAX_KEY} characters, and not {said}")
    return key


def signal(key: str, payload: Any = True, using: str | None = None) -> None:
    """After the commit, let the durable task that waits for this key (``self.wait_for(key)``) go on.

    One wait takes the signal: that of the oldest job. A signal that comes before its wait is kept for it, for
    ``JOBS["RETENTION_SIGNALS"]``; so is one that no job waits for.

    Parameters:
        key: text, at most 255 characters: ``"approved:42"``.
        payload: what ``wait_for`` returns; what may be an argument of a job.
        using: the database of the job that waits, as of ``apply_async``.

    Raises:
        TypeError, ValueError: the key or the payload cannot be kept.
    """
    alias = databases.job_alias(using)
    kept = jsonable(payload, "the payload")
    check_size(json.dumps(kept, ensure_ascii=False), "the payload is", conf().MAX_ARGS_BYTES)
    Signal.objects.using(alias).create(key=check_key(key), payload=kept)
    if connections[alias].in_atomic_block or connections[alias].get_autocommit():
        transaction.on_commit(partial(_look, key, alias), using=alias, robust=True)


async def asignal(key: str, payload: Any = True, using: str | None = None) -> None:
    """:func:`signal` for async code."""
    await sync_to_async(signal)(key, payload, using)


def send_signal(key: str, payload: Any = True, using: str | None = None) -> None:
    """:func:`signal` for tests: it raises ``AssertionError`` if no job waits for the key."""
    alias = databases.job_alias(using)
    if not store.awaiting(SIGNAL + key, alias).exists():
        others = ", ".join(waited_for(alias)[:20]) or "no job waits for any"
        raise AssertionError(f"no job waits for the signal {key!r}: {others}")
    signal(key, payload, using)


def waited_for(using: str) -> list[str]:
    """The keys that jobs wait for."""
    rows = store.awaiting_any(SIGNAL, using).values_list("waits_for", flat=True)[:MOST]
    return [str(key).removeprefix(SIGNAL) for key in rows]


def _look(key: str, using: str) -> None:
    reach("before_look")
    if waking.wake(SIGNAL + key, using):
        # If that job does not take it, a worker looks again.
        return
    fresh = Signal.objects.using(using).filter(key=key, taken_by=None, look_until=NOT_LOOKED)
    fresh.update(look_until=databases.epoch(using) + LOOKED_AFTER)


def look_again(using: str) -> bool:
    """Wake the jobs that wait for a signal of the last minute: its sender, or the waiting run, may not have looked.

    False: no job was woken.
    """
    recent = Signal.objects.using(using).filter(taken_by=None, look_until__gt=databases.epoch(using))
    fresh = list(recent.filter(look_until=NOT_LOOKED).values_list("pk", flat=True)[: conf().BATCH])
    waits = store.awaiting(Concat(Value(SIGNAL), OuterRef("key")), using)
    keys = set(recent.filter(Exists(waits)).values_list("key", flat=True)[: conf().BATCH])
    woken = [waking.wake(SIGNAL + key, using) for key in keys]
    if fresh:
        rows = Signal.objects.using(using).filter(pk__in=fresh)
        rows.update(look_until=databases.epoch(using) + LOOKED_AFTER)
    return any(woken)


def is_there(key: str, using: str) -> bool:
    return Signal.objects.using(using).filter(key=key, taken_by=None).exists()


def wake_if_there(key: str, using: str) -> None:
    if is_there(key, using):
        waking.wake(SIGNAL + key, using)


def prune(using: str, budget: float) -> int:
    """Delete signals that no job took, in ``budget`` seconds. A signal that was taken is deleted with its job."""
    if (age := conf().RETENTION_SIGNALS) is None:
        return 0
    rows, done, until = Signal.objects.using(using), 0, time.monotonic() + budget
    old = rows.filter(taken_by=None, made_at__lt=now_plus(-age)).order_by("made_at").values_list("pk", flat=True)
    while (keys := list(old[: conf().BATCH])) and time.monotonic() < until:
        done += rows.filter(pk__in=keys)._raw_delete(using)
    return done


def untaken(using: str) -> QuerySet[Signal]:
    """The signals that no job took, in the order of their keys."""
    return Signal.objects.using(using).filter(taken_by=None).order_by("key", "pk")
