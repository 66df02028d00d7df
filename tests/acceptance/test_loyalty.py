"""The example's second service: points for who signs up and pays."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest
from django.db import transaction

from jobs.events.models import Event, Subscription
from jobs.models import LIVE, Job
from shop.events import customer_signed_up, order_paid
from shop.loyalty.models import Account, Award
from shop.models import Customer
from shop.services import sign_up
from tests.helpers import harness
from tests.helpers.harness import ROOT, Worker
from tests.helpers.loyalty import LoyaltyWorker, alias_of, environment, migrate
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_who_is_not_signed_up_is_not_told_of():
    with transaction.atomic():
        sign_up(Customer(name="Ada", email="ada@example.com"))
        transaction.set_rollback(True)
    assert not Event.objects.exists()
    ada = sign_up(Customer(name="Ada", email="ada@example.com"))
    [told] = Event.objects.all()
    assert (told.name, told.source, told.order_key) == ("shop.customer.signed_up", "shop", str(ada.public_id))
    assert told.data == {"customer": str(ada.public_id), "email": "ada@example.com"}


@pytest.mark.slow
@pytest.mark.database
def test_points_are_given_in_a_database_that_both_share():
    """The service's jobs are for its own workers, whoever hands the events on."""
    with Worker(concurrency=1), LoyaltyWorker(concurrency=1):
        assert_points("default")


@pytest.mark.slow
@pytest.mark.servers
def test_points_are_given_in_a_database_of_its_own(rabbitmq_server, settings, tmp_path):
    """The same code, over RabbitMQ."""
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": rabbitmq_server.url}
    url = f"sqlite:///{tmp_path / 'loyalty.sqlite3'}"
    migrate(url)
    with alias_of(url) as alias, Worker(concurrency=1), LoyaltyWorker(concurrency=1, url=url) as worker:
        worker.said("the queue events.loyalty gets")
        assert_points(alias)
        assert not Job.objects.filter(task__startswith="shop.loyalty").exists()


#: Not in this process, whose own service would have the handlers then.
FITS = """
import django, sys
django.setup()
from jobs.testing import assert_fits
from shop.loyalty import handlers
assert_fits(getattr(handlers, sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize(("told", "handler"), [(customer_signed_up, "welcome"), (order_paid, "award_points")])
def test_what_the_shop_tells_fits_the_handlers(told, handler):
    """A service keeps the schemas of what it handles, as the other one wrote them: ``jobs events schema --dir``."""
    file = ROOT / "shop" / "loyalty" / "schemas" / f"{told.name}.v{told.version}.json"
    assert json.loads(file.read_text()) == told.schema.json_schema(told.name, told.version), "write it again"
    command = [sys.executable, "-c", FITS, handler, str(file)]
    subprocess.run(command, env=harness.environment(**environment()), cwd=ROOT, check=True)


def assert_points(using: str) -> None:
    """Of customers that sign up and pay."""
    subscribed = Subscription.objects.using(using).filter(service="loyalty")
    wait_for(lambda: subscribed.count() == 2, 40, "the service has subscribed")
    customers = [sign_up(Customer(name="Ada", email=f"{number}@example.com")) for number in range(5)]
    paid = [order_paid(uuid.uuid4(), each.public_id, 1990) for each in customers for _ in range(2)]
    awards, jobs = Award.objects.using(using), Job.objects.using(using).filter(queue="loyalty")
    wait_for(lambda: awards.count() >= 15, 60, "points are given")
    wait_for(lambda: not jobs.filter(state__in=LIVE).exists(), 30, "all jobs have ended")
    accounts = Account.objects.using(using)
    assert set(accounts.values_list("points", flat=True)) == {100 + 2 * 19}
    assert accounts.get(email="0@example.com").customer == customers[0].public_id
    events = list(awards.values_list("event", flat=True))
    assert len(events) == len(set(events)) == 15
    assert set(paid) < set(events)
