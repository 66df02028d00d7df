"""A project's tasks, written for these packages."""

import asyncio

import celery_progress.backend
import sentry_sdk
import structlog
from celery import shared_task

from tests.helpers.gates import wait_for_file
from tests.models import Effect

logger = structlog.get_logger("django_structlog.tests")


@shared_task(bind=True)
def counts(self, gate):
    recorder = celery_progress.backend.ProgressRecorder(self)
    recorder.set_progress(3, 4, "nearly")
    wait_for_file(gate)
    return "counted"


@shared_task(bind=True, atomic=False)
def counts_without_a_transaction(self, gate):
    return counts.run.__func__(self, gate)


@shared_task
def logs(key):
    logger.info("in the body", key=key)
    Effect.objects.create(key=key)


@shared_task
def divides(x, y):
    return x / y


@shared_task
def kills():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@shared_task
async def divides_later(x, y):
    sentry_sdk.set_tag("set in", "the body")
    with sentry_sdk.start_span(op="wait", name="a moment"):
        await asyncio.sleep(0.05)
    return x / y
