"""Bodies that call others."""

from celery import shared_task

import jobs
from tests import tasks


@shared_task
def calls(key):
    tasks.effect.delay(f"{key}-inner")
    with jobs.tagged(step="two"):
        tasks.effect.delay(f"{key}-block")


@shared_task(tags={"user": "{user_id}", "team": "billing"})
def about(user_id): ...
