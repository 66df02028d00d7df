"""On SQLite the processes of a worker write one after the other, and a turn ends with its process."""

from __future__ import annotations

import os
import signal

import pytest
from django.db import connection

from jobs import store
from jobs.contrib.write_turns import turns
from jobs.worker.pool import Lock
from tests.helpers.concurrency import Elsewhere
from tests.helpers.servers import wait_for


@pytest.fixture
def lock(monkeypatch):
    lock = Lock()
    monkeypatch.setattr(turns, "_processes", lock)
    return lock


def test_outside_of_workers_nobody_waits():
    with turns.held(), turns.held():
        pass


def test_a_thread_that_has_its_turn_does_not_wait_for_itself_and_others_wait_for_it(lock):
    done: list[int] = []

    def write() -> None:
        with turns.held():
            done.append(2)

    with turns.held():
        with turns.held():
            done.append(1)
        other = Elsewhere(write)
        with pytest.raises(AssertionError, match="still waits"):
            other.result(0.1)
    other.result()
    assert done == [1, 2]


def test_a_turn_ends_with_its_process(lock):
    child = os.fork()
    if child == 0:
        lock.acquire()
        signal.pause()
    try:
        # Its holder alone keeps it: this process has forked, and owns nothing.
        wait_for(lambda: not lock.acquire(block=False) or lock.release(), 10, "the child has its turn")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with turns.held():
        pass


def test_it_is_what_the_store_of_sqlite_gives(lock):
    if connection.vendor != "sqlite":
        pytest.skip("elsewhere there are several writers")
    with store.of("default").write_mutex():
        assert turns._own.has_it
