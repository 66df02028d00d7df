"""Calls of a provider that are made twice, or never."""

import json
import urllib.request

from celery import shared_task
from django.conf import settings

from jobs import effect
from tests.models import Imported


def charge(key):
    request = urllib.request.Request(f"{settings.PAYMENT_URL}/charges", b"{}", {"Idempotency-Key": key} if key else {})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@shared_task(atomic=False)
def without_ledger(pk):
    with urllib.request.urlopen(f"{settings.PAYMENT_URL}/charges", b"{}") as answer:  # <- here
        Imported.objects.filter(pk=pk).update(note=json.load(answer)["id"])


@shared_task(atomic=False)
def without_ledger_mended(pk):
    with effect("charge", pk) as call:
        if not call.done:
            call.answered(charge(call.key))
    Imported.objects.filter(pk=pk).update(note=call.answer["id"])
