"""Who commits a job tells the workers after it, by no broker; and wakes as many as there are jobs."""

from __future__ import annotations

import kombu
import pytest
from django.db import transaction

from jobs.lifecycle.wakeups import SOME, Wakeup
from jobs.models import Job
from tests import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.mark.parametrize(
    "how",
    [
        lambda: tasks.effect.delay("a"),
        lambda: tasks.effect.delay_many([("a",), ("b",)]),
        lambda: tasks.effect.apply_async(("a",), queue="mail", priority=3, link=tasks.noop.si()),
        lambda: (tasks.add.s(1, 2) | tasks.add.s(3)).apply_async(),
    ],
    ids=["delay", "delay_many", "apply_async", "chain"],
)
def test_a_call_opens_no_connection_to_the_broker(monkeypatch, how):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection to the broker")

    monkeypatch.setattr(kombu.Connection, "_establish_connection", refuse)
    with transaction.atomic():
        how()
    assert Job.objects.exists()


def test_a_bell_wakes_as_many_as_it_was_rung_for():
    wakeup = Wakeup()
    wakeup.send()
    wakeup.send()
    assert [wakeup.wait(0), wakeup.wait(0), wakeup.wait(0)] == [SOME, SOME, b""]


def test_a_bell_that_nobody_hears_holds_nobody_up():
    wakeup = Wakeup()
    for _ in range(100_000):
        wakeup.send()
    assert wakeup.wait(0)
    wakeup.take()
