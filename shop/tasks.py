"""The shop's tasks. Each uses the tool that fits it: marker and guard, ledger, steps, lock, cursor, or unique key.

The last one is a task of Django's own interface, ``django.tasks``.
"""

import csv
import http.client
import json
import smtplib

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.core.mail import EmailMessage, EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string

try:
    from django.tasks import task
except ImportError:  # Django 5.2: the package django-tasks
    from django_tasks import task

from jobs import effect, guard
from shop import payments
from shop.events import order_paid
from shop.models import Customer, CustomerFile, DailySummary, Import, Order, OrderNote, WelcomeEffect


@shared_task(
    bind=True,
    autoretry_for=(smtplib.SMTPException, OSError, SoftTimeLimitExceeded),
    max_retries=8,
    retry_backoff=True,
    retry_backoff_max=60,
    retry_jitter=True,
    # Seconds for the whole conversation with the mail server. EMAIL_TIMEOUT limits each of its answers.
    soft_time_limit=30,
    # At most one run per customer is committed, however many jobs there are.
    idempotency_key="welcome:{customer_id}",
)
def send_welcome_email(self, customer_id):
    """Send the welcome e-mail, and note that it was sent.

    The flag and the ledger row are committed exactly once. The e-mail is sent at least once: if the worker is killed
    after the mail server has accepted it and before the commit, the next run sends it again. It then has the same
    Message-ID, so mailboxes and people recognise it.
    """
    # It is the same in every run.
    message_id = self.job.idempotency_key.replace(":", ".")
    # The customer's own row is locked until the commit, also while the mail server answers. Nothing else is locked.
    # Do not lock a row of auth_user here: every login updates it. EMAIL_TIMEOUT has to be set: without it a mail
    # server that hangs would hold the lock and the worker without end.
    try:
        with guard(Customer, pk=customer_id) as customer:
            if customer.is_welcome_email_sent:
                return
            welcome_email(customer, message_id=f"<{message_id}@shop.example.com>").send()
            customer.is_welcome_email_sent = True
            customer.save(update_fields=["is_welcome_email_sent"])
            WelcomeEffect.objects.create(customer=customer)
    except Customer.DoesNotExist:
        # The customer was deleted in the meantime.
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
    # The ledger commits before the call and after it. No transaction is open while the provider works.
    atomic=False,
    # If nobody knows whether a call happened, it is made again, because this provider heeds the key. For a provider
    # that does not, use "park", or a function that asks it: ``lambda call: payments.find_charge(call.key)``.
    on_ambiguous="retry",
    autoretry_for=(OSError, http.client.HTTPException, SoftTimeLimitExceeded),
    max_retries=8,
    retry_backoff=True,
    retry_backoff_max=60,
    retry_jitter=True,
    soft_time_limit=30,
)
def charge_order(self, order_id):
    """Charge an order. The provider is called at least once, always with the same key, and so it charges once.

    The worker, the provider or the network may fail at any moment: the next run learns from the ledger that the order
    may be paid already.
    """
    order = Order.objects.select_related("customer").filter(pk=order_id).first()
    if order is None or order.charge:
        return
    with effect("charge", str(order.public_id)) as call:
        # It is done if an earlier run had the answer, and was killed before the last line below.
        if not call.done:
            try:
                call.answered(payments.charge(str(order.public_id), order.cents, idempotency_key=call.key))
            except (ConnectionRefusedError, payments.PaymentError):
                # Nothing was charged. After any other exception nobody knows, and the ledger says so.
                call.not_sent()
                raise
    # If a person has said that it happened, the id may be unknown.
    charge = call.answer["id"] if call.answer else "by hand"
    with transaction.atomic():
        # Only the run that notes the charge tells other services, and has the order packed.
        if Order.objects.filter(pk=order_id, charge="").update(charge=charge):
            order_paid(order.public_id, order.customer.public_id, order.cents)
            fulfil_order.delay(order_id)


@shared_task(
    bind=True,
    # One job from the parcel to the customer. Each run begins at the top, and what a step did is not done again.
    durable=True,
    # For each step by itself.
    autoretry_for=(smtplib.SMTPException, OSError),
    max_retries=8,
    retry_backoff=True,
    retry_backoff_max=60,
)
def fulfil_order(self, order_id):
    """Pack an order, and wait until it is fetched. After a week without that, send a reminder.

    No process waits. A row of the step is committed together with what the step did, so a worker may be killed
    anywhere, and nothing is lost or done twice. The e-mail is sent at least once, with the same Message-ID.
    """
    key = Order.objects.values_list("public_id", flat=True).get(pk=order_id)
    self.step("pack", note, order_id, OrderNote.What.PACKED)
    # The signal comes from shop.services.fetch.
    if self.wait_for(f"fetched:{key}", timeout=settings.FETCH_WITHIN) is None:
        # No transaction is open while the mail server answers.
        self.step("remind", send_reminder, order_id, effect=True)
        self.step("note", note, order_id, OrderNote.What.REMINDED)


def note(order_id, what):
    OrderNote.objects.create(order_id=order_id, what=what)


def send_reminder(order_id, idempotency_key):
    order = Order.objects.select_related("customer").get(pk=order_id)
    message_id = idempotency_key.replace(":", ".")
    EmailMessage(
        subject=render_to_string("shop/reminder_subject.txt").strip(),
        body=render_to_string("shop/reminder.txt", {"order": order}),
        to=[order.customer.email],
        headers={"Message-ID": f"<{message_id}@shop.example.com>"},
    ).send()


@shared_task(
    bind=True,
    # Only one run per feed at a time. This saves work; it is the database, below, that prevents an order from being
    # there twice.
    lock="import:{source}",
    lock_ttl=60,
    # The feed is read before the transaction begins: nothing is locked while its server answers.
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
            # This run paused for longer than its lock lives, and another run has written since.
            return 0
        new = records[feed.position :]
        for record in new:
            customer = Customer.objects.get(email__iexact=record["email"])
            Order.objects.create(customer=customer, cents=record["cents"])
        feed.position, feed.fence = len(records), self.lock_token
        feed.save()
    return len(new)


def read_feed(source):
    """The orders of a feed: one JSON object a line. Lines are only added, never changed."""
    with open(source) as lines:
        return [json.loads(line) for line in lines if line.strip()]


#: So many customers of a file are saved in one transaction.
PART = 100


# Each part has a transaction of its own: nothing is locked for long, and a kill costs one part.
@shared_task(bind=True, atomic=False)
def import_customers(self, file_id):
    """Take over the customers of a file, part by part. After a crash the next run goes on after the last commit."""
    rows = list(csv.DictReader(CustomerFile.objects.get(pk=file_id).text.splitlines()))
    done = self.job.cursor or 0
    while done < len(rows):
        part = rows[done : done + PART]
        with transaction.atomic():
            for row in part:
                if not Customer.objects.filter(email__iexact=row["email"]).exists():
                    Customer.objects.create(name=row["name"], email=row["email"])
            done += len(part)
            # The cursor is committed with the part. If this run has lost its job, this raises.
            self.job.save_cursor(done)
        # The page of the file shows it.
        self.progress(done, len(rows), f"{done} of {len(rows)}")
    return len(rows)


# The schedule may ask for it every night, and an operator at any time. As long as one job waits, a second call gets
# that job. The key is free as soon as the job starts, because from then on it may miss what is new.
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


# A task of ``django.tasks`` is a job like all others, by the backend in settings.TASKS.
@task
def collect_data(customer_id):
    """Return what the shop knows of a customer, who may ask for it. It is the result of the task."""
    customer = Customer.objects.get(pk=customer_id)
    orders = customer.orders.order_by("created_at")
    return {
        "name": customer.name,
        "email": customer.email,
        "signed_up_at": customer.created_at.isoformat(),
        "orders": [{"id": str(order.public_id), "cents": order.cents, "paid": bool(order.charge)} for order in orders],
    }
