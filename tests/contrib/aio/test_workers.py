"""Async bodies in real workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from celery import shared_task

from tests.helpers.harness import Worker, effects, wait_ended
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


async def exists(path, timeout=60.0):
    async with asyncio.timeout(timeout):
        while not Path(path).exists():
            await asyncio.sleep(0.02)


def save(key, note=""):
    Effect.objects.create(key=key, pid=os.getpid(), note=note)


@shared_task(bind=True)
async def meets(self, key, directory, number):
    """All bodies are in at the same time, or none goes on."""
    Path(directory, key).touch()
    async with asyncio.timeout(30):
        while len(os.listdir(directory)) < number:
            await asyncio.sleep(0.02)
    return self.commit(save, key)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_fifty_bodies_are_in_one_process_at_once(pool, tmp_path):
    results = meets.delay_many([(str(n), str(tmp_path), 50) for n in range(50)])
    with Worker("-P", pool, concurrency=1) as worker:
        jobs = wait_ended(*[result.id for result in results])
        text = worker.text()
    assert {(job.state, job.lease) for job in jobs} == {("succeeded", 1)}, text
    assert effects() == {str(n): 1 for n in range(50)}
    assert len(set(Effect.objects.values_list("pid", flat=True))) == 1
