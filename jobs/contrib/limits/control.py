"""``celery control rate_limit``: for tasks of ours, one row sets it for all workers, and it survives restarts."""

from typing import Any

from jobs.conf import is_ours
from jobs.contrib.limits import limits
from jobs.contrib.limits.rates import limit_of
from jobs.worker.watchdog import supervisor


def rate_limit(stock: Any, state: Any, task_name: str, rate_limit: Any, **kwargs: Any) -> Any:
    if not is_ours(state.app.tasks.get(task_name)):
        return stock(state, task_name, rate_limit, **kwargs)
    try:
        limit_of(rate=rate_limit)
    except ValueError as exc:
        return {"error": str(exc)}
    supervisor.do(set_rate, task_name, str(rate_limit))
    return {"ok": "new rate limit set successfully"}


def set_rate(task: str, rate: str) -> None:
    # A concurrency that was set by hand stays.
    concurrency, _ = limits.read().get(task, (None, None))
    limits.set_by_hand(task, concurrency, rate, "celery control rate_limit")
