"""What the shop tells other services of: names and fields that they rely on.

Customers and orders go by their public ids, which mean the same in every database. What happened to one customer is
handled in its order.
"""

import uuid

from jobs.events import event


@event("shop.customer.signed_up", order_key="{customer}")
def customer_signed_up(customer: uuid.UUID, email: str) -> None:
    pass


@event("shop.order.paid", order_key="{customer}")
def order_paid(order: uuid.UUID, customer: uuid.UUID, cents: int) -> None:
    if cents < 0:
        raise ValueError(f"the order {order} has a negative amount: {cents}")
