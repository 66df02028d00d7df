"""Mails that leave twice, or never."""

from celery import shared_task
from django.core.cache import cache
from django.core.mail import EmailMessage, send_mail
from django.db import transaction

from jobs import guard
from tests.models import Imported


def send(key):
    """With a key by which mailboxes can tell that it is the same mail."""
    EmailMessage("Welcome", "", None, ["ada@example.com"], headers={"Message-ID": f"<{key}@example.com>"}).send()


@shared_task
def without_key(pk):
    send_mail("Welcome", "", None, ["ada@example.com"])  # <- here


@shared_task(bind=True)
def without_key_mended(self, pk):
    send(self.job.idempotency_key)


@shared_task
def flag_after(pk):
    row = Imported.objects.get(pk=pk)
    if not row.note:
        send_mail("Welcome", "", None, ["ada@example.com"])  # <- here
        row.note = "sent"
        row.save()


@shared_task
def flag_after_mended(pk):
    with guard(Imported, pk=pk) as row:
        if not row.note:
            send(f"welcome.{pk}")
            row.note = "sent"
            row.save()


@shared_task(atomic=False)
def flag_before(pk):
    row = Imported.objects.get(pk=pk)
    if not row.note:
        row.note = "sent"
        row.save()  # <- here
        send(f"welcome.{pk}")


flag_before_mended = flag_after_mended


@shared_task(atomic=False)
def before_transaction(pk):
    send_mail("Welcome", "", None, ["ada@example.com"])  # <- here
    with transaction.atomic():
        Imported.objects.filter(pk=pk).update(note="sent")


@shared_task(bind=True, idempotency_key="welcome:{pk}")
def before_transaction_mended(self, pk):
    send(self.job.idempotency_key)
    Imported.objects.filter(pk=pk).update(note="sent")


@shared_task
def cache_as_guard(pk):
    if cache.add(f"welcome:{pk}", 1):  # <- here
        send(f"welcome.{pk}")


@shared_task(bind=True, idempotency_key="welcome:{pk}")
def cache_as_guard_mended(self, pk):
    send(self.job.idempotency_key)


@shared_task
def on_commit(pk):
    Imported.objects.filter(pk=pk).update(note="sent")
    transaction.on_commit(lambda: send_mail("Welcome", "", None, ["ada@example.com"]))  # <- here


@shared_task
def on_commit_mended(pk):
    Imported.objects.filter(pk=pk).update(note="sent")
    without_key_mended.delay(pk)
