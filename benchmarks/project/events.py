"""The same work, done by the handler of an event."""

from __future__ import annotations

from django.conf import settings

from benchmarks.project.tasks import idem
from jobs.events import event, handler


@event("user.came")
def user_came(number: int) -> None:
    pass


@event("user.came_in_order", order_key="{number}")
def user_came_in_order(number: int) -> None:
    pass


if "here" not in getattr(settings, "JOBS", {}).values():

    @handler("user.came")
    def welcome(number: int) -> None:
        idem.run(number)
