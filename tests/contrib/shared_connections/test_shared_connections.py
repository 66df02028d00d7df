"""Threads of a supervisor share connections: each has them for a step, and nobody waits for a step that hangs."""

from __future__ import annotations

import threading

import pytest
from django.db import Error, connection, connections, transaction

from jobs.contrib.shared_connections import turns
from jobs.models import Job
from tests.helpers.concurrency import Elsewhere
from tests.helpers.rows import make
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _sharing(monkeypatch):
    monkeypatch.setattr(turns, "_turns", None)
    turns.share()
    if connection.vendor == "sqlite":
        assert turns._turns is None, "files are not shared"
        pytest.skip("of a database server")
    yield
    for each in turns._turns._connections:
        each.close()


def session() -> object:
    """Which connection this thread has."""
    connection.ensure_connection()
    return connection.connection


def test_threads_have_one_connection_after_the_other():
    def step():
        with turns.turn():
            return session()

    found = [Elsewhere(step).result() for _ in range(3)]
    assert found[0] is found[1] is found[2]


def test_a_thread_has_no_connection_beside_its_turn():
    def step():
        with turns.turn():
            session()
        return connections.all(initialized_only=True)

    assert Elsewhere(step).result() == []


def test_what_a_step_leaves_open_is_rolled_back():
    row = make()

    def leave():
        with turns.turn():
            transaction.atomic().__enter__()
            Job.objects.filter(pk=row.pk).update(priority=7)

    def look():
        with turns.turn():
            return Job.objects.get(pk=row.pk).priority, connection.in_atomic_block

    Elsewhere(leave).result()
    assert Elsewhere(look).result() == (row.priority, False)


def test_after_an_error_the_next_one_has_a_sound_connection():
    def fail():
        with turns.turn(), connection.cursor() as cursor:
            connection.connection.close()
            cursor.execute("SELECT 1")

    def look():
        with turns.turn():
            return Job.objects.count()

    assert isinstance(Elsewhere(fail).result(), Error)
    assert Elsewhere(look).result() == 0


def test_a_turn_within_a_turn_is_the_same():
    def step():
        with turns.turn():
            outer = session()
            with turns.turn():
                assert session() is outer
            return session() is outer

    assert Elsewhere(step).result() is True


class Holder:
    """A step that lasts until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.gives_way = threading.Event(), threading.Event(), False
        self._step = Elsewhere(self._hold)
        assert self.begun.wait(10)

    def _hold(self):
        with turns.turn():
            session()
            self.begun.set()
            while not self.may_end.wait(0.01):
                if self.gives_way:
                    turns.give_way()
            return session()

    def end(self):
        self.may_end.set()
        return self._step.result()


def step():
    with turns.turn():
        return session()


def test_a_step_waits_for_another_and_has_the_same_connection():
    holder = Holder()
    waits = Elsewhere(step)
    wait_for(lambda: turns._turns.is_wanted, 5, "it waits")
    assert not waits.outcome
    assert holder.end() is waits.result()


def test_a_step_that_takes_long_gives_way(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE", 3600.0)
    holder = Holder()
    holder.gives_way = True
    assert Elsewhere(step).result() is holder.end()


def test_nobody_waits_for_a_step_that_hangs(monkeypatch):
    """The clock, for a statement that waits for somebody's lock: it opens a connection for this step."""
    monkeypatch.setattr(turns, "PATIENCE", 0.1)
    holder = Holder()
    own = Elsewhere(step).result()
    assert own.closed
    assert holder.end() is not own
    assert not Elsewhere(step).result().closed


def test_the_clock_waits_a_second_at_the_most():
    assert turns.PATIENCE <= 1.0
