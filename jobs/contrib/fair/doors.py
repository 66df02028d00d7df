"""The part of fair shares in the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from jobs.doors import Extension
from jobs.idempotency.keys import template_of

#: Tasks whose calls say no key, as long as no task and no queue has one.
_plain: WeakSet[Any] = WeakSet()
_is_used = False


class Fair(Extension):
    """Options of a task that come on top:

    fair_key (template or callable):
        The keys of a queue take turns: ``"{customer_id}"``. One customer's many jobs do not stand before another's
        first. A key of the queue (``JOBS["QUEUES"]``) holds for its tasks that have none.
    """

    options = {"fair_key": ("a template such as '{customer_id}', or a callable", (str, Callable))}
    instead = {"jobs.lifecycle.claims.Claimer": "jobs.contrib.fair.claims.FairClaimer"}

    @staticmethod
    def queue_options(fair_key: Any = None, weights: Any = None) -> bool:
        from jobs.contrib.fair.keys import options_of

        return options_of(fair_key, weights)

    def declared(self, task: Any) -> None:
        global _is_used
        if getattr(task, "fair_key", None) is None:
            return
        from jobs.contrib.fair.keys import mark

        task.key_templates["fair_key"] = template_of(task, "fair_key")
        _is_used = True
        for each in _plain:
            each.call_hooks = (*each.call_hooks, mark)
        _plain.clear()

    def called(self, task: Any) -> Any:
        from jobs.conf import conf, problems
        from jobs.contrib.fair.keys import mark

        if _is_used or (not problems() and any({"fair_key", "weights"} & {*each} for each in conf().QUEUES.values())):
            return mark
        _plain.add(task)
        return None

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.fair.waiting import waits

        return waits(view)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        if page not in ("dashboard", "limits"):
            return {}
        from jobs.contrib.fair.admin import panel
        from jobs.contrib.fair.waiting import in_turns

        return {"panel": panel(about["fair"] if page == "dashboard" else in_turns())}
