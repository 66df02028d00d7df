"""A ledger of external calls: the row of a call is committed before it, and the answer after it.

After a crash between the two commits it is unknown whether the call happened; the row says so. After Brandur Leach,
"Implementing Stripe-like idempotency keys in Postgres", on foreign state mutations.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models.functions import Now
from django.db.transaction import TransactionManagementError

from jobs.conf.logs import log
from jobs.conf.syncpoints import reach
from jobs.contrib.effects.models import Effect
from jobs.contrib.once.once import joined
from jobs.errors import Busy, EffectParked, LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.run import Run, current_run, on_thread, persistently
from jobs.models.values import decoded, jsonable, safe_repr, scrub
from jobs.store import databases


def effect(name: str, *key: Any) -> Block:
    """Make an external call (a payment, an SMS, another service's API) under a row that knows of it.

    In the body of a task with ``atomic=False``::

        with effect("charge", order.pk) as call:
            if not call.done:
                call.answered(provider.charge(order.amount, idempotency_key=call.key))
        order.charge_id = call.answer["id"]

    In an ``async def`` body it is ``async with``, and what was answered is committed at the end of the block.

    The call happens at least once, and a provider that heeds ``call.key`` acts on it once. If an earlier run, or
    another job, was answered under this name and key, ``call.done`` is true and ``call.answer`` is what it got. If one
    began the call and did not say what became of it (its block raised or died), it is *ambiguous*, and the task's
    ``on_ambiguous`` decides:

    * ``"retry"`` (default): the block calls again, with the same key. For providers that heed it.
    * ``"park"``: a person looks at the provider and says what happened (in the admin, or ``manage.py jobs effects``);
      until then the job ends ``failed`` with :class:`EffectParked`.
    * A callable gets the :class:`Call` and asks the provider. It returns the answer (JSON, and not None: True if there
      is nothing to say), or None: it did not happen, and the block calls. If it raises, the call stays ambiguous.

    Parameters:
        name: what is called, at most 100 characters: ``"charge"``.
        key: text and whole numbers that make it this very call, for ever: an order's id, and not the job's.

    Raises:
        TransactionManagementError: inside a transaction, where nothing can be committed before the call.
        RuntimeError: outside of a job; or the block ended without saying what became of the call.
        Busy: another job makes this call at the moment; this one snoozes.
        EffectParked: a person has to say whether it happened.
        Cancel, LostLease: as ``self.checkpoint()``; no call is made then.
    """
    return Block(name, key)


class Block:
    """The block of :func:`effect`."""

    def __init__(self, name: str, key: tuple[Any, ...]) -> None:
        self._name, self._key = name, key
        self._call: Call

    def __enter__(self) -> Call:
        if (run := current_run()) is None:
            raise RuntimeError(
                f"effect({self._name!r}) belongs to a job: call it in the body of a task that a worker runs, in the "
                "thread of the body (a plain call of the task, apply() and task_always_eager make no job; in a test "
                "enqueue it, and run it with run_jobs() of jobs.testing)"
            )
        if run.task.is_async and asyncio._get_running_loop() is not None:
            raise TypeError(f"effect({self._name!r}) in an async def body is awaited: async with effect(...) as call:")
        self._call = Call(run, self._name, self._key)
        run.checkpoint()
        self._call._begin()
        reach("before_call")
        return self._call

    def __exit__(self, kind: Any, exc: BaseException | None, trace: Any) -> None:
        self._call._write()
        if exc is None and not self._call._is_settled:
            what = f"the block of effect({self._name!r}) ended and did not say what became of the call"
            cure = "say call.answered(answer), with None if there is no answer, or call.not_sent()"
            raise RuntimeError(f"{what}: {cure}")

    async def __aenter__(self) -> Call:
        call: Call = await on_thread(self.__enter__)
        call._is_awaited = True
        return call

    async def __aexit__(self, *raised: Any) -> None:
        create = partial(asyncio.get_running_loop().create_task, context=copy_context())
        # In a context without a run: this is no part of the body, whose tasks are cancelled when the body ends.
        writes = Context().run(create, on_thread(partial(self.__exit__, *raised)))
        run = self._call._run
        run.writes = run.writes or set()
        run.writes.add(writes)
        writes.add_done_callback(run.writes.discard)
        struck: BaseException | None = None
        # Race: before the thread comes to this, a limit strikes, a person cancels the job, or another part of the body
        # fails. The call has happened.
        while not writes.done():
            try:
                await asyncio.wait([writes])
            except BaseException as exc:
                struck = exc
        if struck is not None:
            raise struck from (None if writes.cancelled() else writes.exception())
        writes.result()


class Call:
    """One external call, as the block of :func:`effect` gets it."""

    def __init__(self, run: Run, name: str, key: tuple[Any, ...]) -> None:
        self.name, what = name, f"effect({name!r})"
        if not isinstance(name, str) or not 0 < len(name) <= 100:
            raise ValueError(f"{what}: the name must be text of 1 to 100 characters")
        joined(key, what)
        #: For the provider (``Idempotency-Key``): the same in every run, and of no other call; 255 characters at most.
        self.key = joined((name, *key), what)
        # Escaped also if it has one part only: ("charge", "1:2") is not ("charge", 1, 2).
        self._row_key = self.key.removeprefix(joined((name, ""), what))
        #: The row of the job that makes the call.
        self.job = run.job
        #: Whether the answer is known: make no call then.
        self.done = self._is_settled = False
        #: What the provider answered; None as well if a person said only that it happened.
        self.answer: Any = None
        self._run = run
        self._row: Effect
        self._calls = 1
        #: The block is a coroutine's: what it says is written at its end, on a thread.
        self._is_awaited = False
        self._pending: dict[str, Any] | None = None

    def answered(self, answer: Any) -> None:
        """The call happened, and this is what the provider said. Committed at once, or after the block's transaction.

        Raises:
            TypeError, ValueError: the answer is not JSON. The call is parked until a person gives its answer.
            LostLease: the job was given to another run, which decides for itself; nothing was written.
        """
        try:
            kept = jsonable(answer, f"the answer of effect({self.name!r})")
        except (TypeError, ValueError) as exc:
            # It has happened. Left as ``sending`` it would pass for a call that perhaps never was, and be made again.
            kept = scrub(safe_repr(answer), 4000)
            self._settle("answered()", state=Effect.State.PARKED, answer=kept, sent_at=Now())
            raise type(exc)(
                f"{exc}; response.json() may be what you want. The call {self.key} HAS happened and is parked: "
                f"give its answer with {self._by_hand('--happened --answer JSON')}, then retry the job"
            ) from exc
        self._settle("answered()", state=Effect.State.SENT, answer=kept, sent_at=Now())
        self.done, self.answer = True, decoded(kept)

    def not_sent(self) -> None:
        """The call did not happen, for sure: the provider was not reached, or not called. Raises ``LostLease``."""
        # An earlier call still has to be cleared up.
        self._settle("not_sent()", **({"calls": self._calls - 1} if self._calls > 1 else {}))

    def _settle(self, said: str, **values: Any) -> None:
        if self._is_settled:
            cure = "make it only `if not call.done`, and say once what became of it"
            raise RuntimeError(
                f"call.{said} of effect({self.name!r}), and it was known already what became of it: {cure}"
            )
        self._is_settled, self._pending = True, values
        if not self._is_awaited and not connections[self._run.using].in_atomic_block:
            self._write()

    def _begin(self) -> None:
        """Take the row, and commit that: from here on every process knows that the call may have happened."""
        using = self._run.using
        if databases.in_transaction(using) or not (databases.in_test(using) or connections[using].get_autocommit()):
            raise TransactionManagementError(
                f"effect({self.name!r}) is inside a transaction, and has to commit before the call: declare the task "
                "with atomic=False, and open transaction.atomic() in its body only before or after the effect; in a "
                "durable task, whose steps are transactions, say self.step(name, function, effect=True)"
            )
        policy = self._run.task.on_ambiguous
        try:
            with transaction.atomic(using=using):
                is_ambiguous = self._take(policy)
        except (IntegrityError, OperationalError) as exc:
            if isinstance(exc, OperationalError) and not databases.is_conflict(exc):
                raise
            # Race: the row that stood in the way of the INSERT is gone again, or another transaction changed it.
            # (Without a transaction the body would not be run again.)
            raise Busy(f"another job is at {self.key}") from exc
        if not is_ambiguous:
            return
        says = "the provider is asked" if callable(policy) else f"on_ambiguous is {policy!r}"
        log(logging.WARNING, self._run.job, f"nobody knows whether {self.key} happened: {says}", "ambiguous")
        if policy == "park":
            raise self._parked()
        if not callable(policy):
            return
        if (answer := policy(self)) is not None:
            self.answered(answer)
        else:
            # Nothing has happened so far: the one that comes now is the only one.
            self._fenced({"calls": 1})

    def _take(self, policy: Any) -> bool:
        """Whether an earlier block began the call, and it is unknown what became of it.

        Race: two jobs meet here. The row is locked, so the second one sees what the first has made of it.
        """
        rows = Effect.objects.using(self._run.using).select_for_update()
        mine = {"job": self.job.pk, "lease": self.job.lease}
        row, is_new = rows.get_or_create(name=self.name, key=self._row_key, defaults=mine)
        self._row = row
        if not transitions.hold(self.job):
            raise LostLease("this run lost its lease; it makes no call")
        if row.state == Effect.State.PARKED:
            raise self._parked()
        if row.state == Effect.State.SENT:
            self.done = self._is_settled = True
            self.answer = decoded(row.answer)
        if is_new or self.done:
            return False
        # If it was this very run, an earlier block of it ended with an exception.
        if (row.job, row.lease) != (self.job.pk, self.job.lease) and row.is_being_made():
            raise Busy(f"the job {row.job} makes the call {self.key}")
        if policy == "retry":
            self._calls = row.calls + 1
        state = Effect.State.PARKED if policy == "park" else row.state
        rows.filter(pk=row.pk).update(**mine, state=state, calls=max(self._calls, row.calls))
        return True

    def _parked(self) -> EffectParked:
        row = self._row
        found = "--happened --answer JSON" if row.sent_at else "--happened | --not-happened"
        what = "happened, and its answer could not be kept" if row.sent_at else "may have happened, and nobody knows"
        return EffectParked(
            f"the call {self.key} {what}. Look at the provider for {self.key!r} (made {row.calls} times, first at "
            f"{row.created_at:%Y-%m-%d %H:%M:%S} UTC). Then say what you found, in the admin under External effects or "
            f"with {self._by_hand(found)}, and retry this job: manage.py jobs retry {self.job.pk}"
        )

    def _by_hand(self, options: str) -> str:
        where = f" --database {self._run.using}" if self._run.using != databases.home() else ""
        return f"manage.py jobs effects {self._row.pk} {options}{where}"

    def _write(self) -> None:
        """What became of the call. It has happened: an outage of the database must not make us forget that."""
        if (values := self._pending) is None:
            return
        reach("after_call")
        try:
            done = persistently(self._run, lambda: self._fenced(values))
        except LostLease:
            self._pending = None
            raise
        # A time limit may strike before this, and then the block's end writes it.
        self._pending = None
        if done is None:
            raise OperationalError(f"the database is away, and what became of {self.key} is not noted")
        reach("after_sent")

    def _fenced(self, values: dict[str, Any]) -> bool:
        """Change the row, or without values delete it. It may be done twice: the answer of a COMMIT can get lost.

        Race: this run may be a zombie. Then its answer is dropped, and the run that owns the job decides.
        """
        with transaction.atomic(using=self._run.using):
            rows = Effect.objects.using(self._run.using).filter(pk=self._row.pk)
            is_done = rows.update(**values) if values else rows.delete()
            # Own job row last, as everywhere; without it all of this rolls back.
            if not is_done or not transitions.hold(self.job):
                raise LostLease(f"this run lost its lease; what became of {self.key} is not noted")
        return True
