from django.db import transaction

import jobs
from shop.events import customer_signed_up
from shop.models import Customer, CustomerFile, Order, OrderNote
from shop.tasks import charge_order, collect_data, import_customers, send_welcome_email


def sign_up(customer: Customer) -> Customer:
    """Save a new customer, enqueue the job that welcomes them, and tell other services: all of it, or nothing.

    Raises:
        django.db.IntegrityError: the e-mail address is taken. Then nothing is saved, and an outer
            transaction stays usable.
    """
    with transaction.atomic():
        customer.save()
        customer.welcome_job = send_welcome_email.delay(customer.pk).id
        customer.save(update_fields=["welcome_job"])
        customer_signed_up(customer.public_id, customer.email)
    return customer


def hand_in(text: str) -> CustomerFile:
    """Save a file of customers together with the job that takes them over: both, or neither."""
    with transaction.atomic():
        file = CustomerFile.objects.create(text=text)
        file.job = import_customers.delay(file.pk).id
        file.save(update_fields=["job"])
    return file


def place_order(customer: Customer, cents: int) -> Order:
    """Save an order together with the job that charges it: both, or neither."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, cents=cents)
        order.payment_job = charge_order.delay(order.pk).id
        order.save(update_fields=["payment_job"])
    return order


def fetch(order: Order) -> None:
    """Note that an order was fetched, and let its job go on, which waits for that: both, or neither."""
    with transaction.atomic(), jobs.guard(Order, pk=order.pk) as order:
        if not order.notes.filter(what=OrderNote.What.FETCHED).exists():
            order.notes.create(what=OrderNote.What.FETCHED)
            jobs.signal(f"fetched:{order.public_id}")


def ask_for_data(customer: Customer) -> str:
    """Have a customer's data collected; return the id by which ``collect_data.get_result`` finds them."""
    return collect_data.enqueue(customer.pk).id
