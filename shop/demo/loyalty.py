"""The second service of the demo: when it is killed, and what it has made of the shop's events."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections
from django.db.models import Sum

from jobs.models import Event, Job, Subscription
from shop.demo.rabbitmq import RabbitMQ
from shop.demo.worker import Worker
from shop.loyalty.models import Account, Award
from shop.models import Customer, Order

#: How often its worker is killed, each time after some more awards.
KILLS = 2

#: After this part of all sign-ups nothing more is killed.
PART = 0.6


class Loyalty:
    """
    Parameters:
        signups: how many customers will sign up.
        seed: decides when its worker and the broker die.
        name: the beginning of its workers' names.
        broker: the broker between the services; None: they share a database.
    """

    def __init__(self, signups: int, seed: int, name: str, directory: Path, broker: RabbitMQ | None) -> None:
        self.directory, self.broker = directory, broker
        self.workers: list[Worker] = []
        self.killed = self.broker_killed = 0
        self._name = name
        self._using = "default" if broker is None else "loyalty"
        self._over = threading.Event()
        self._failure: BaseException | None = None
        happenings: list[Callable[[], None]] = [self._kill_worker] * KILLS
        if broker is not None:
            happenings.insert(1, self._kill_broker)
        choice = random.Random(seed)
        moments = sorted(choice.randint(1, max(1, int(PART * signups))) for _ in happenings)
        self._happenings = list(zip(moments, happenings, strict=True))
        self._thread = threading.Thread(target=self._strike, daemon=True)

    def start(self) -> None:
        if self.broker is not None:
            call_command("migrate", database=self._using, verbosity=0)
        self._start_worker()

    @property
    def is_ready(self) -> bool:
        return Subscription.objects.using(self._using).filter(service="loyalty").count() == 2

    def strike(self) -> None:
        """Begin to kill its workers and the broker, each at its moment."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether everything was killed that is to be killed, and each event is handled."""
        if self._failure is not None:
            raise self._failure
        return not (
            self._thread.is_alive()
            or self._awards().values("event").distinct().count() < Event.objects.filter(source="shop").count()
            or Job.objects.using(self._using).filter(queue=queue(), finished_at=None).exists()
        )

    def end(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        for worker in self.workers:
            worker.kill()

    def count(self) -> dict[str, Any]:
        told = set(Event.objects.filter(source="shop").values_list("uuid", flat=True))
        handled = Counter(self._awards().values_list("event", flat=True))
        return {
            "events": len(told),
            "handled": len(handled),
            "points": Account.objects.using(self._using).aggregate(sum=Sum("points"))["sum"] or 0,
            "loyalty_killed": self.killed,
            "broker_killed": self.broker_killed,
            "events_lost": len(told - set(handled)),
            "events_twice": sum(count > 1 for count in handled.values()),
            "between": "the database that both share" if self.broker is None else "RabbitMQ",
        }

    def problems(self) -> list[str]:
        """How the promise was broken, a sentence each."""
        found, counts = [], self.count()
        paid = Order.objects.exclude(charge="")
        if counts["events"] != (due := Customer.objects.count() + paid.count()):
            found.append(f"{counts['events']} events were told, and {due} things happened.")
        if counts["events_lost"]:
            found.append(f"{counts['events_lost']} events were lost.")
        if counts["events_twice"]:
            found.append(f"{counts['events_twice']} events were handled more than once.")
        # The same points as in shop.loyalty.handlers.
        due = 100 * Customer.objects.count() + sum(cents // 100 for cents in paid.values_list("cents", flat=True))
        if counts["points"] != due:
            found.append(f"{counts['points']} points were given, and {due} were due.")
        return found

    def _awards(self) -> Any:
        return Award.objects.using(self._using).order_by()

    def _start_worker(self) -> None:
        name = f"{self._name}-loyalty-{len(self.workers) + 1}"
        env = {"DJANGO_SETTINGS_MODULE": "shop.loyalty.settings"}
        self.workers.append(Worker(name, self.directory, app="shop.loyalty", **env))

    def _strike(self) -> None:
        try:
            for moment, happening in self._happenings:
                while self._awards().count() < moment:
                    if self._over.wait(0.02):
                        return
                happening()
        except BaseException as exc:
            self._failure = exc
        finally:
            connections.close_all()

    def _kill_worker(self) -> None:
        self.workers[-1].kill()
        self._start_worker()
        self.killed += 1

    def _kill_broker(self) -> None:
        assert self.broker is not None
        self.broker.kill()
        time.sleep(1)
        if not self.broker.start():
            raise RuntimeError("RabbitMQ did not start again.")
        self.broker_killed += 1


def queue() -> str:
    """The queue of its jobs."""
    return os.environ["LOYALTY_QUEUE"]
