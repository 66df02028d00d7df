"""The example's second service: points for who signs up and pays."""

from __future__ import annotations

import uuid

import pytest
from django.db import transaction

from jobs.models import LIVE, Event, Job, Subscription
from shop.events import order_paid
from shop.loyalty.models import Account, Award
from shop.models import Customer
from shop.services import sign_up
from tests.harness import Worker
from tests.loyalty import LoyaltyWorker
from tests.servers import wait_for

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


@pytest.mark.database
def test_points_are_given_in_a_database_that_both_share():
    """The service's jobs are for its own workers, whoever hands the events on."""
    with Worker(concurrency=1), LoyaltyWorker(concurrency=1):
        wait_for(lambda: Subscription.objects.filter(service="loyalty").count() == 2, 40, "the service subscribed")
        customers = [sign_up(Customer(name="Ada", email=f"{number}@example.com")) for number in range(5)]
        paid = [order_paid(uuid.uuid4(), each.public_id, 1990) for each in customers for _ in range(2)]
        wait_for(lambda: Award.objects.count() >= 15, 60, "points are given")
        wait_for(lambda: not Job.objects.filter(queue="loyalty", state__in=LIVE).exists(), 30, "all jobs have ended")
    assert set(Account.objects.values_list("points", flat=True)) == {100 + 2 * 19}
    assert Account.objects.get(email="0@example.com").customer == customers[0].public_id
    events = list(Award.objects.values_list("event", flat=True))
    assert len(events) == len(set(events)) == 15
    assert set(paid) < set(events)
