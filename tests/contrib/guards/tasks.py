"""The tasks of these tests."""

from __future__ import annotations

from celery import shared_task

from jobs import guard
from tests.models import Order


@shared_task
def guards(pk):
    with guard(Order, pk=pk):
        pass


@shared_task(autoretry_for=(Order.DoesNotExist,))
def guards_patiently(pk):
    with guard(Order, pk=pk):
        pass
