"""Who commits a job tells the workers after it, by no broker; and wakes as many as there are jobs."""

from __future__ import annotations

import kombu
import pytest
from celery import current_app
from django.db import connection, transaction

from jobs.lifecycle import wakeups
from jobs.lifecycle.wakeups import SOME, News, Wakeup
from jobs.models import Job
from jobs.store import databases, sessions
from tests import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def queue() -> str:
    return current_app.conf.task_default_queue


@pytest.fixture(autouse=True)
def _never_rung():
    wakeups._notified.clear()


def test_a_ring_is_a_statement_of_its_own_after_the_commit(monkeypatch):
    """In the transaction it would let only one at a time commit."""
    if connection.vendor != "postgresql":
        pytest.skip("nobody rings elsewhere")
    sent = []
    kind = type(sessions.session_of("default"))
    notify = kind.notify

    def note(session, channel, payloads):
        sent.append((channel, payloads, databases.status(connection)))
        notify(session, channel, payloads)

    monkeypatch.setattr(kind, "notify", note)
    with transaction.atomic():
        tasks.effect.delay("a")
        assert not sent
    [(channel, [payload], status)] = sent
    assert (channel, News.read(payload).queue, status) == (wakeups.CHANNEL, queue(), databases.IDLE)


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
