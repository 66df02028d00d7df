"""The events that the shop tells other services of. They rely on these names and fields.

An event names customers and orders by their public ids, which mean the same in every database. Events of one customer
are handled in their order.
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
