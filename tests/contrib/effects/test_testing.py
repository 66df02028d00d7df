"""How a project tests bodies that call others: ``run_jobs()`` and plain calls."""

from __future__ import annotations

import pytest
from celery import shared_task

from jobs import effect
from jobs.contrib.effects.models import Effect
from jobs.testing import run_jobs
from tests import models


@shared_task(atomic=False)
def charges(order):
    with effect("charge", order) as call:
        if not call.done:
            call.answered({"id": call.key})
    models.Effect.objects.create(key=call.answer["id"])


def test_the_ledger_of_calls_works(case):
    charges.delay(7)
    charges.delay(7)
    assert run_jobs().states == {"succeeded": 2}
    assert [each.key for each in models.Effect.objects.all()] == ["charge:7", "charge:7"]
    assert Effect.objects.get().state == "sent"


def test_a_plain_call_says_how_it_is_tested(case):
    with pytest.raises(RuntimeError, match=r"run_jobs\(\) of jobs\.testing"):
        charges(7)
