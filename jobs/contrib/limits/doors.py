"""What of limits takes part in the core."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.conf.rates import RATE, limit_of
from jobs.doors import Extension
from jobs.inspection.problems import Kind, Link


def _place(_about: Any) -> Link:
    return Link(_("Show them"), "limit_changelist")


class Limits(Extension):
    options = {
        "concurrency": ("a whole number", (int,)),
        "rate": (RATE, (str, int, float)),
    }

    @property
    def looks(self) -> Mapping[str, str]:  # type: ignore[override]
        from jobs.contrib.limits.store import LOOKS

        return LOOKS

    kinds = {
        "limited": Kind(
            severity="info",
            many=ngettext_lazy("%(number)s limit is reached", "%(number)s limits are reached", "number"),
            is_fault=False,
            place=_place,
        ),
        "rated": Kind(
            severity="info",
            many=ngettext_lazy("%(number)s rate is reached", "%(number)s rates are reached", "number"),
            is_fault=False,
            place=_place,
        ),
    }

    def declared(self, task: Any) -> None:
        rate = None if task._get_app().conf.worker_disable_rate_limits else task.rate_limit
        task.claim_limit = limit_of(task.concurrency, rate if task.rate is None else task.rate)
        if task.claim_limit is None and inspect.getattr_static(task, "limit_key") is not None:
            raise ValueError("limit_key= needs concurrency= or rate=, which it is the key of")

    @property
    def called(self) -> Any:
        # Each call comes by here: the door is the function itself.
        from jobs.contrib.limits.limits import mark

        return mark

    def claimer(self, app: Any) -> Any:
        from jobs.contrib.limits.claims import LimitedClaimer

        return LimitedClaimer(app)

    def registered(self) -> None:
        from jobs.contrib.limits.claims import publish

        publish()

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.contrib.limits.claims import ticked

        ticked(answers)

    def set_rate(self, task: str, rate: str) -> None:
        from jobs.contrib.limits import limits

        # What was set by hand otherwise, its concurrency, stays.
        concurrency, _ = limits.read().get(task, (None, None))
        limits.set_by_hand(task, concurrency, rate, "celery control rate_limit")

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.limits.claims import prune_rate_limiters

        prune_rate_limiters(using)

    def status(self, found: dict[str, Any]) -> dict[str, Any]:
        from jobs.contrib.limits.usage import usage

        return {"limits": usage()}

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.contrib.limits.usage import problems

        return problems(found["limits"])

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.limits.usage import waits

        return waits(view)

    def keeps(self, queue: str) -> bool:
        from jobs.contrib.limits.usage import keeps_first

        return keeps_first(queue)

    def free(self, queue: str, rows: Any) -> Any:
        from jobs.contrib.limits.usage import free

        return free(queue, rows)
