"""The handlers of the shop's events. Each runs as a job: its effects are committed exactly once."""

import uuid

from django.db.models import F

from jobs.events import handler
from shop.loyalty.models import Account, Award

#: Points for a sign-up.
WELCOME = 100


@handler("shop.customer.signed_up", bind=True)
def welcome(self, customer: uuid.UUID, email: str) -> None:
    """Open the account, with some points for the start."""
    award(customer, self.event.id, WELCOME)
    Account.objects.filter(customer=customer).update(email=email)


@handler("shop.order.paid", bind=True)
def award_points(self, customer: uuid.UUID, cents: int) -> None:
    """A point for each whole euro."""
    award(customer, self.event.id, cents // 100)


def award(customer: uuid.UUID, event: uuid.UUID, points: int) -> None:
    # Only events of the same name are in order: this event may be handled before the sign-up.
    account, _ = Account.objects.get_or_create(customer=customer)
    Award.objects.create(account=account, event=event, points=points)
    Account.objects.filter(pk=account.pk).update(points=F("points") + points)
