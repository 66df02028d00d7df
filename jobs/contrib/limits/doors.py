"""The part of limits in the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jobs.contrib.limits.rates import RATE, limit_of
from jobs.doors import Extension
from jobs.idempotency.keys import template_of


class Limits(Extension):
    """Options of a task that come on top:

    concurrency (int):
        At most so many jobs of the task run at once, over all workers. Others wait, and use no process.
    rate (``"10/s"``, ``"100/m"``, ``"5000/h"``):
        At most so many start in that time, over all workers, in even steps. Celery's ``rate_limit`` means the same.
    limit_key (template or callable):
        ``concurrency`` and ``rate`` hold for each key on its own: ``"{customer_id}"``.
    """

    options = {
        "concurrency": ("a whole number", (int,)),
        "rate": (RATE, (str, int, float)),
        "limit_key": ("a template such as '{customer_id}', or a callable", (str, Callable)),
    }
    queue_options = staticmethod(limit_of)

    instead = {"jobs.lifecycle.claims.Claimer": "jobs.contrib.limits.claims.LimitedClaimer"}

    @property
    def looks(self) -> Mapping[str, str]:  # type: ignore[override]
        from jobs.contrib.limits.store import LOOKS

        return LOOKS

    def declared(self, task: Any) -> None:
        concurrency, rate = getattr(task, "concurrency", None), getattr(task, "rate", None)
        if rate is None and not task._get_app().conf.worker_disable_rate_limits:
            rate = task.rate_limit
        task.claim_limit = limit_of(concurrency, rate)
        if getattr(task, "limit_key", None) is None:
            return
        if task.claim_limit is None:
            raise ValueError("limit_key= needs concurrency= or rate=, which it is the key of")
        task.key_templates["limit_key"] = template_of(task, "limit_key")

    def called(self, task: Any) -> Any:
        if task.claim_limit is None:
            return None
        from jobs.contrib.limits.limits import mark

        return mark

    def registered(self) -> None:
        from jobs.contrib.limits.claims import publish

        publish()

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.contrib.limits.claims import ticked

        ticked(answers)

    @property
    def controls(self) -> Mapping[str, Callable[..., Any]]:  # type: ignore[override]
        from jobs.contrib.limits.control import rate_limit

        return {"rate_limit": rate_limit}

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.limits.claims import prune_rate_limiters

        prune_rate_limiters(using)

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.limits.usage import waits

        return waits(view)
