"""Two services: the shop, which tells of orders that are paid, and the one that gives points for them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.test.utils import override_settings

from jobs.contrib.verify.verify import verify
from jobs.events.models import UNRELAYED, UNSENT, Event, Subscription
from jobs.models import LIVE, Job
from shop.events import order_paid
from shop.loyalty.models import Account, Award
from tests.faults.ledger import LEAST
from tests.faults.worker import Worker
from tests.helpers.loyalty import LoyaltyWorker
from tests.helpers.servers import RabbitMQ, wait_for

#: So many customers have an order of their events.
CUSTOMERS = 50


class Services:
    """Tells of orders, and compares what was committed with the points that were given.

    The points of an order are its number, so what was done for a customer is a list of numbers: those that were told,
    each once, in their order.

    Parameters:
        rabbitmq: between the two; None: they share a database.
        url: the second one's database; empty: the shop's.
        using: the alias of this process for it.
    """

    def __init__(self, rabbitmq: RabbitMQ | None, url: str, using: str) -> None:
        self.rabbitmq, self.url, self.using = rabbitmq, url, using
        self.customers = [uuid.uuid4() for _ in range(CUSTOMERS)]
        #: The numbers of each customer's orders whose COMMIT was answered.
        self.told: dict[uuid.UUID, list[int]] = defaultdict(list)
        self.recovered: float | None = None
        #: As of a ledger.
        self.measured = ""
        self._numbers, self._transactions = itertools.count(1), itertools.count()

    def shop(self, **more: Any) -> Worker:
        return Worker(wait=False, **more)

    def loyalty(self, **more: Any) -> LoyaltyWorker:
        return LoyaltyWorker(url=self.url, **more)

    def subscribed(self, worker: Worker, handlers: int = 2) -> Worker:
        """Wait until what is told from now on reaches this worker's service."""
        rows = Subscription.objects.using(self.using).filter(service="loyalty")
        wait_for(lambda: rows.count() == handlers, 40, "it has subscribed")
        if self.rabbitmq is not None:
            worker.said("the queue events.loyalty gets")
        worker.said(" ready.")
        return worker

    def subscribe(self) -> None:
        """The second service was up once, and is down now."""
        with self.loyalty() as worker:
            assert self.subscribed(worker).stop() == 0

    def tell(self, orders: int = LEAST, size: int = 9) -> None:
        """Tell of so many orders, 1 to ``size`` in a transaction; some transactions roll back."""
        enough = self.count + orders
        while self.count < enough:
            turn = next(self._transactions)
            some = [next(self._numbers) for _ in range(1 + turn % size)]
            with transaction.atomic():
                for number in some:
                    order_paid(uuid.uuid4(), self._customer(number), 100 * number)
                transaction.set_rollback(turn % 7 == 6)
            for number in some if turn % 7 != 6 else ():
                self.told[self._customer(number)].append(number)

    @property
    def count(self) -> int:
        return sum(map(len, self.told.values()))

    def awarded(self, customers: Iterable[uuid.UUID] | None = None) -> dict[uuid.UUID, list[int]]:
        """The numbers of what was done for each of the customers, in that order."""
        rows = Award.objects.using(self.using).filter(account__customer__in=list(customers or self.customers))
        found: dict[uuid.UUID, list[int]] = defaultdict(list)
        for customer, points in rows.order_by("pk").values_list("account__customer", "points"):
            found[customer].append(points)
        return found

    def wait_awards(self, in_all: int) -> None:
        wait_for(lambda: Award.objects.using(self.using).count() >= in_all, 60, f"{in_all} awards")

    def check(self, within: float, failed: Mapping[str, int] | None = None) -> None:
        """Wait until nothing is under way, and hold what is there against the promise.

        Parameters:
            within: the seconds that recovery may take, from now.
            failed: of which handlers so many jobs fail.
        """
        began = time.monotonic()
        wait_for(lambda: not self._stuck(), within, f"all events were handled within {within} s", step=0.1)
        self.recovered = max(self.recovered or 0.0, time.monotonic() - began)
        found = self.awarded()
        given, told = ({key: sorted(each) for key, each in some.items()} for some in (found, self.told))
        assert given == told, "lost, or twice"
        assert found == self.told, "out of order"
        sums = dict(Account.objects.using(self.using).annotate(sum=Sum("awards__points")).values_list("points", "sum"))
        assert all(points == given for points, given in sums.items())
        ended = Job.objects.using(self.using).filter(state="failed").values_list("task", flat=True)
        assert {task: list(ended).count(task) for task in ended} == dict(failed or {})
        for alias in {"default", self.using}:
            with override_settings(JOBS={**settings.JOBS, "DATABASES": [alias]}):
                broken = [(each.says, *each.examples) for each in verify().findings if each.violations]
            assert not broken, (alias, broken)
        assert self.count >= LEAST, f"{self.count} events are too few for a scenario"

    def _stuck(self) -> bool:
        jobs = Job.objects.using(self.using).filter(state__in=LIVE)
        given = Award.objects.using(self.using).filter(account__customer__in=self.customers).count()
        told = Event.objects.filter(UNRELAYED if self.rabbitmq is None else UNRELAYED | UNSENT)
        return given < self.count or told.exists() or jobs.exists()

    def _customer(self, number: int) -> uuid.UUID:
        return self.customers[number % CUSTOMERS]
