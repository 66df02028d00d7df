"""Bodies that are limited; workers import them as well."""

from __future__ import annotations

import os
import time

from celery import shared_task

from tests.models import Effect


@shared_task(concurrency=2)
def two_at_once(key, seconds=0.0):
    time.sleep(seconds)
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(concurrency=1, limit_key="{customer}")
def one_of_a_customer(customer, key=""):
    Effect.objects.create(key=f"{customer}{key}", pid=os.getpid())


@shared_task(rate="5/s")
def five_a_second(key):
    Effect.objects.create(key=key, pid=os.getpid())
