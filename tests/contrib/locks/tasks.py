"""The tasks of these tests."""

from __future__ import annotations

import os

from celery import shared_task

from tests.helpers.gates import once_only, wait_for_file
from tests.models import Effect


@shared_task(bind=True, atomic=False, lock="gated:{key}", lock_ttl=60)
def gated_alone(self, key, name, started, gate):
    if once_only(started):
        wait_for_file(gate)
    Effect.objects.create(key=name, pid=os.getpid(), note=str(self.lock_token))


@shared_task(bind=True, lock="locked:{key}")
def locked(self, key):
    Effect.objects.create(key=key, note=str(self.lock_token))
