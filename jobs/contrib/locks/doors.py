"""The part of the locks in the core: a task's ``lock=``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jobs.doors import Extension
from jobs.idempotency.keys import template_of


class Locks(Extension):
    """Options of a task that come on top:

    lock (template or callable):
        A lock around the run, held until it is committed (:func:`jobs.lock`): while another job has it, this one comes
        back later and uses no attempt. ``self.lock_token`` is its fencing token.
    lock_ttl (seconds, default 30):
        How long the lock outlives a holder that cannot renew it; at least ``JOBS["HEARTBEAT"]``.
    """

    options = {
        "lock": ("a template such as '{account_id}', or a callable", (str, Callable)),
        "lock_ttl": ("a number of seconds (of a timedelta: .total_seconds())", (int, float)),
    }

    def declared(self, task: Any) -> None:
        if (template := template_of(task, "lock")) is None:
            return
        from jobs.conf import problems

        task.key_templates["lock"], task.holding = template, staticmethod(_hold)
        if not problems():
            from jobs.contrib.locks.locks import check_ttl

            check_ttl(_ttl(task), "lock_ttl")

    def called(self, task: Any) -> Callable[[Any, Any], None] | None:
        # The run takes the lock; but a key that no store could keep is refused here.
        return _check_key if "lock" in task.key_templates else None

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.locks.locks import prune
        from jobs.store import databases

        if using == databases.home():
            with databases.side(is_apart=False) as side:
                prune(side, budget)


def _ttl(task: Any) -> Any:
    return getattr(task, "lock_ttl", 30.0)


def _check_key(task: Any, job: Any) -> None:
    task.key_of("lock", job)


@contextmanager
def _hold(run: Any) -> Iterator[int]:
    from jobs.contrib.locks.locks import lock

    with lock(run.task.key_of("lock", run.job), ttl=_ttl(run.task)) as token:
        yield token
