"""The shop's jobs: one whose effects and completion are one transaction, and one that makes an external call."""

import http.client
import smtplib

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string

from jobs import effect
from shop import payments
from shop.models import Customer, Order, WelcomeEffect


@shared_task(
    bind=True,
    autoretry_for=(smtplib.SMTPException, OSError, SoftTimeLimitExceeded),
    max_retries=8,
    retry_backoff=True,
    retry_backoff_max=60,
    retry_jitter=True,
    # EMAIL_TIMEOUT bounds each answer of the mail server, this the whole conversation (seconds).
    soft_time_limit=30,
)
def send_welcome_email(self, customer_id):
    """Send the welcome e-mail, once per customer as far as the database can tell.

    The flag and the ledger row are committed exactly once. The e-mail leaves at least once: if the worker is
    killed after the server took it and before the commit, the next run sends it again, under the same
    Message-ID, by which mailboxes and people can tell that it is the same one.
    """
    # Locked until the commit, so also while the mail server answers: this customer's own row, and nothing else.
    # It would be wrong to lock a row of auth_user here, which every login updates. EMAIL_TIMEOUT is set because
    # without it a mail server that hangs would keep the lock, and the worker, for as long as it likes.
    customer = Customer.objects.select_for_update().filter(pk=customer_id).first()
    if customer is None or customer.is_welcome_email_sent:
        return
    welcome_email(customer, message_id=f"<{self.request.id}@shop.example.com>").send()
    customer.is_welcome_email_sent = True
    customer.save(update_fields=["is_welcome_email_sent"])
    WelcomeEffect.objects.create(customer=customer)


def welcome_email(customer: Customer, message_id: str) -> EmailMultiAlternatives:
    context = {"customer": customer}
    message = EmailMultiAlternatives(
        subject=render_to_string("shop/welcome_email_subject.txt", context).strip(),
        body=render_to_string("shop/welcome_email.txt", context),
        to=[customer.email],
        headers={"Message-ID": message_id},
    )
    message.attach_alternative(render_to_string("shop/welcome_email.html", context), "text/html")
    return message


@shared_task(
    bind=True,
    # The ledger commits before the call and after it, and no transaction is open while the provider takes its time.
    atomic=False,
    # The provider heeds the key, so a call of which nobody knows is made again. For one that does not: "park", or a
    # function that asks it, here ``lambda call: payments.find_charge(call.key)``.
    on_ambiguous="retry",
    autoretry_for=(OSError, http.client.HTTPException, SoftTimeLimitExceeded),
    max_retries=8,
    retry_backoff=True,
    retry_backoff_max=60,
    retry_jitter=True,
    soft_time_limit=30,
)
def charge_order(self, order_id):
    """Charge an order. The provider is called at least once, under one key, by which it charges once.

    Whoever dies where (this worker, the provider, the line between them), the next run knows from the ledger that
    the order may be paid already.
    """
    order = Order.objects.filter(pk=order_id).first()
    if order is None or order.charge:
        return
    with effect("charge", str(order.public_id)) as call:
        # Answered before: a run that was killed between the answer and its last line below.
        if not call.done:
            try:
                call.answered(payments.charge(str(order.public_id), order.cents, idempotency_key=call.key))
            except (ConnectionRefusedError, payments.PaymentError):
                # For sure nothing was charged. After any other exception nobody knows, and the ledger says so.
                call.not_sent()
                raise
    Order.objects.filter(pk=order_id).update(charge=call.answer["id"])
