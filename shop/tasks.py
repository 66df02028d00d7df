"""The shop's jobs, each with the tool that fits: marker and guard, ledger of calls, lock, cursor, unique key.

The last one is a task of Django's own interface.
"""

import csv
import http.client
import json
import smtplib

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string

try:
    from django.tasks import task
except ImportError:  # Django 5.2: the package django-tasks
    from django_tasks import task

from jobs import effect, guard
from shop import payments
from shop.events import order_paid
from shop.models import Customer, CustomerFile, DailySummary, Import, Order, WelcomeEffect


@shared_task(
    bind=True,
    autoretry_for=(smtplib.SMTPException, OSError, SoftTimeLimitExceeded),
    max_retries=8,
    retry_backoff=True,
    retry_backoff_max=60,
    retry_jitter=True,
    # EMAIL_TIMEOUT bounds each answer of the mail server, this the whole conversation (seconds).
    soft_time_limit=30,
    # At most one committed run per customer, however many jobs ask for it.
    idempotency_key="welcome:{customer_id}",
)
def send_welcome_email(self, customer_id):
    """Send the welcome e-mail, once per customer as far as the database can tell.

    The flag and the ledger row are committed exactly once. The e-mail leaves at least once: if the worker is
    killed after the server took it and before the commit, the next run sends it again, under the same
    Message-ID, by which mailboxes and people can tell that it is the same one.
    """
    # The same in every run.
    message_id = self.job.idempotency_key.replace(":", ".")
    # Locked until the commit, so also while the mail server answers: this customer's own row, and nothing else.
    # It would be wrong to lock a row of auth_user here, which every login updates. EMAIL_TIMEOUT is set because
    # without it a mail server that hangs would keep the lock, and the worker, for as long as it likes.
    try:
        with guard(Customer, pk=customer_id) as customer:
            if customer.is_welcome_email_sent:
                return
            welcome_email(customer, message_id=f"<{message_id}@shop.example.com>").send()
            customer.is_welcome_email_sent = True
            customer.save(update_fields=["is_welcome_email_sent"])
            WelcomeEffect.objects.create(customer=customer)
    except Customer.DoesNotExist:
        # Deleted since: nobody is left to welcome.
        return


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
    order = Order.objects.select_related("customer").filter(pk=order_id).first()
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
    # A person who says that it happened need not know its id.
    charge = call.answer["id"] if call.answer else "by hand"
    with transaction.atomic():
        # Other services are told once, by the run that notes it.
        if Order.objects.filter(pk=order_id, charge="").update(charge=charge):
            order_paid(order.public_id, order.customer.public_id, order.cents)


@shared_task(
    bind=True,
    # One run per feed at a time. It saves the work of the second one; that no order is there twice is up to the
    # database, below.
    lock="import:{source}",
    lock_ttl=60,
    # The feed is read before the transaction begins, so that nothing stays locked while its server takes its time.
    atomic=False,
    autoretry_for=(OSError,),
    max_retries=8,
    retry_backoff=True,
)
def import_orders(self, source):
    """Take over new orders from a partner's feed: a file, or a URL in a real shop."""
    records = read_feed(source)
    Import.objects.get_or_create(source=source)
    with transaction.atomic(), guard(Import, source=source) as feed:
        if feed.fence > self.lock_token:
            # This run was paused for longer than its lock lives, and another one came after it.
            return 0
        new = records[feed.position :]
        for record in new:
            customer = Customer.objects.get(email__iexact=record["email"])
            Order.objects.create(customer=customer, cents=record["cents"])
        feed.position, feed.fence = len(records), self.lock_token
        feed.save()
    return len(new)


def read_feed(source):
    """The orders of a feed, one JSON object a line; lines are only added."""
    with open(source) as lines:
        return [json.loads(line) for line in lines if line.strip()]


#: How many customers of a file are one transaction.
PART = 100


# Each part of it has a transaction of its own, so that nothing stays locked for long, and a kill costs one part.
@shared_task(bind=True, atomic=False)
def import_customers(self, file_id):
    """Take over the customers of a file, part by part; a run that was lost goes on where its last commit was."""
    rows = list(csv.DictReader(CustomerFile.objects.get(pk=file_id).text.splitlines()))
    done = self.job.cursor or 0
    while done < len(rows):
        part = rows[done : done + PART]
        with transaction.atomic():
            for row in part:
                if not Customer.objects.filter(email__iexact=row["email"]).exists():
                    Customer.objects.create(name=row["name"], email=row["email"])
            done += len(part)
            # In the commit of the part: both, or neither. A run that was killed raises here.
            self.job.save_cursor(done)
        # For whoever looks at the file's page.
        self.progress(done, len(rows), f"{done} of {len(rows)}")
    return len(rows)


# Celery beat asks for it every night, and an operator may do so at any time: whoever comes while one waits finds it
# there. The key is free when the summary starts, because it may have counted by then.
@shared_task(unique="summary:{day}")
def summarize(day):
    """Count a day's sign-ups and orders."""
    DailySummary.objects.update_or_create(
        day=day,
        defaults={
            "signups": Customer.objects.filter(created_at__date=day).count(),
            "orders": Order.objects.filter(created_at__date=day).count(),
        },
    )


# Of ``django.tasks``, with the backend of settings.TASKS: a job like all others.
@task
def collect_data(customer_id):
    """What the shop knows of a customer, who may ask for it. It is the result of the task."""
    customer = Customer.objects.get(pk=customer_id)
    orders = customer.orders.order_by("created_at")
    return {
        "name": customer.name,
        "email": customer.email,
        "signed_up_at": customer.created_at.isoformat(),
        "orders": [{"id": str(order.public_id), "cents": order.cents, "paid": bool(order.charge)} for order in orders],
    }
