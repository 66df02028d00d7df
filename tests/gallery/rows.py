"""Rows that are changed twice, half, or by two at once."""

from celery import shared_task
from django.db import transaction
from django.db.models import F

from jobs import guard, once
from tests.models import Effect, Imported


@shared_task(atomic=False)
def get_or_create(pk):
    _, is_new = Imported.objects.get_or_create(key="ada")  # <- here
    if is_new:
        Effect.objects.create(key="ada")


@shared_task
def get_or_create_mended(pk):
    _, is_new = Imported.objects.get_or_create(key="ada")
    if is_new:
        Effect.objects.create(key="ada")


@shared_task(atomic=False)
def adds_up(pk):
    Imported.objects.filter(pk=pk).update(fence=F("fence") + 1)  # <- here
    Effect.objects.create(key="ada")


@shared_task(bind=True, atomic=False)
def adds_up_mended(self, pk):
    with transaction.atomic(), once("adds_up", self.job.idempotency_key) as first:
        if first:
            Imported.objects.filter(pk=pk).update(fence=F("fence") + 1)
            Effect.objects.create(key="ada")


@shared_task
def stale_row(pk):
    row = Imported.objects.get(pk=pk)  # <- here
    row.fence += 1
    row.save()


@shared_task
def stale_row_mended(pk):
    with guard(Imported, pk=pk) as row:
        row.fence += 1
        row.save()


@shared_task
def opposite_order(one, other):
    Imported.objects.filter(pk=one).update(fence=F("fence") + 1)
    Imported.objects.filter(pk=other).update(fence=F("fence") + 1)  # <- here


@shared_task
def opposite_order_mended(one, other):
    with guard(Imported.objects.filter(pk__in=[one, other])) as rows:
        for row in rows:
            row.fence += 1
            row.save()


@shared_task(bind=True, atomic=False, lock="row:{pk}")
def locked(self, pk):
    """Right as long as nobody else is at it."""
    fence = Imported.objects.get(pk=pk).fence
    with transaction.atomic(), once("locked", self.job.idempotency_key) as first:
        if first:
            Imported.objects.filter(pk=pk).update(fence=fence + 1)


@shared_task(idempotency_key="marked:{pk}")
def marked(pk):
    Effect.objects.create(key="ada")
