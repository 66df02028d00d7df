"""Bodies whose keys take turns; workers import them as well."""

from __future__ import annotations

import os

from celery import shared_task

from tests.models import Effect


@shared_task(fair_key="{customer}", queue="fair")
def of_a_customer(customer, number=0):
    Effect.objects.create(key=f"{customer}:{number}", pid=os.getpid())


@shared_task(fair_key="{customer}", queue="fair")
def another_of_a_customer(customer, number=0):
    Effect.objects.create(key=f"{customer}:{number}", pid=os.getpid())


@shared_task(queue="fair")
def of_nobody(number=0):
    Effect.objects.create(key=f"-:{number}", pid=os.getpid())


@shared_task(fair_key="{customer}", concurrency=1, limit_key="{customer}", queue="fair")
def one_of_a_customer(customer, number=0):
    Effect.objects.create(key=f"{customer}:{number}", pid=os.getpid())
