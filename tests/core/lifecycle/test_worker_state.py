"""What a process writes into the worker state is what the supervisor reads there, whatever happens to either."""

from __future__ import annotations

import os
import select
import signal
import struct
import time
import uuid

import pytest

from jobs.lifecycle import worker_state as module
from jobs.lifecycle.worker_state import BODY, BUSY, IDLE, MAX_PROCESSES, NAMED, WorkerState, is_alive
from tests.helpers.servers import wait_for


@pytest.fixture
def worker_state() -> WorkerState:
    return WorkerState()


def named(slot, *, job=None, lease=3, token=2**62 + 1, batch=2**61 + 1, soft=None, hard=None, text=b"{}"):
    slot.name(job or uuid.uuid4(), lease, token, batch, soft, hard, text)


def forked(action) -> int:
    """The process that did it, and is over."""
    if (child := os.fork()) == 0:
        try:
            action()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return child


def test_a_slot_is_read_as_it_was_written(worker_state):
    slot, key, now = worker_state.take(), uuid.uuid4(), time.monotonic()
    named(slot, job=key, soft=10.0, hard=20.0)
    [read] = worker_state.occupied()
    assert (read.pid, read.phase, read.job, read.lease) == (os.getpid(), NAMED, key, 3)
    assert (read.token, read.batch) == (2**62 + 1, 2**61 + 1)
    assert now <= read.began <= time.monotonic()
    assert (round(read.soft_at - read.began), round(read.hard_at - read.began)) == (10, 20)
    assert read.has_job
    assert not read.is_dead


def test_a_run_without_limits_has_none(worker_state):
    slot = worker_state.take()
    named(slot)
    [read] = worker_state.occupied()
    assert (slot.soft_at, read.soft_at, read.hard_at) == (0.0, 0.0, 0.0)


def test_a_token_of_its_own_changes_nothing_else(worker_state):
    slot = worker_state.take()
    named(slot, soft=10.0, hard=20.0)
    [before] = worker_state.occupied()
    slot.retoken(5)
    [after] = worker_state.occupied()
    assert after.token == 5
    for name in ("pid", "phase", "lease", "began", "soft_at", "hard_at", "job"):
        assert getattr(after, name) == getattr(before, name), name


def test_the_body_is_a_phase_of_its_own(worker_state):
    slot = worker_state.take()
    named(slot)
    slot.enter(BODY)
    assert (slot.phase, worker_state.occupied()[0].phase) == (BODY, BODY)
    slot.enter(NAMED)
    assert (slot.phase, worker_state.occupied()[0].phase) == (NAMED, NAMED)


def test_between_two_jobs_a_process_has_none_but_keeps_what_waits(worker_state):
    slot = worker_state.take()
    named(slot)
    slot.rest(BUSY, 77)
    [read] = worker_state.occupied()
    assert (read.phase, read.has_job, read.batch, read.token, read.job.int) == (BUSY, False, 77, 0, 0)


def test_who_is_busy_is_known_by_its_process(worker_state):
    slot = worker_state.take()
    assert not worker_state.is_busy(os.getpid())
    assert worker_state.at_work() == []
    slot.rest(BUSY)
    assert worker_state.is_busy(os.getpid())
    assert worker_state.at_work() == worker_state.occupied()
    assert not worker_state.is_busy(2**22 + 1)


def test_a_slot_that_was_left_is_free_for_the_next(worker_state):
    slot = worker_state.take()
    named(slot)
    slot.free()
    assert worker_state.occupied() == []
    again = worker_state.take()
    [read] = worker_state.occupied()
    assert (read.phase, read.has_job, again.phase) == (IDLE, False, IDLE)


def test_each_thread_of_a_process_has_a_slot_of_its_own(worker_state):
    keys = [uuid.uuid4() for _ in range(8)]
    for key in keys:
        named(worker_state.take(), job=key)
    assert {slot.job for slot in worker_state.occupied()} == set(keys)
    assert len({slot.index for slot in worker_state.occupied()}) == 8


def test_more_than_it_has_room_for_is_an_error_that_says_so(worker_state):
    for _ in range(MAX_PROCESSES):
        worker_state.take()
    with pytest.raises(RuntimeError, match="start a second worker"):
        worker_state.take()


def test_a_dead_process_keeps_its_slot_until_it_was_settled(worker_state):
    key = uuid.uuid4()

    def die():
        slot = worker_state.take()
        named(slot, job=key)
        slot.enter(BODY)

    child = forked(die)
    [read] = worker_state.occupied()
    assert (read.pid, read.job, read.phase, read.is_dead) == (child, key, BODY, True)
    worker_state.clear(read)
    assert worker_state.occupied() == []


def test_a_process_that_nobody_has_reaped_is_dead():
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        wait_for(lambda: not is_alive(child), 5, "it is dead")
        assert is_alive(os.getpid())
    finally:
        os.waitpid(child, 0)


def test_what_people_read_is_of_the_job_that_is_there(worker_state):
    slot, key = worker_state.take(), uuid.uuid4()
    named(slot, job=key, text=b'{"id": "%s", "name": "tests.tasks.noop"}' % str(key).encode())
    [read] = worker_state.occupied()
    assert worker_state.text(read)["name"] == "tests.tasks.noop"
    named(slot, text=b'{"id": "another"}')
    assert worker_state.text(read) == {}
    named(slot, job=key, text=b"{broken")
    assert worker_state.text(read) == {}
    named(slot, job=key, text=b"x" * 100_000)
    assert worker_state.text(read) == {}, "too long a text does no harm to the slots behind it"
    assert len(worker_state.occupied()) == 1


def test_all_processes_share_what_is_said_of_the_worker(worker_state):
    node = uuid.uuid4()

    def tell():
        worker_state.node = node
        worker_state.queues = ["mail", "celery"]
        worker_state.stock_waits = True
        worker_state.wants_events = True
        worker_state.note_heartbeat()
        worker_state.note_stop()

    assert (worker_state.silence, worker_state.stopping_for) == (0.0, None)
    forked(tell)
    assert (worker_state.node, worker_state.queues) == (node, ["celery", "mail"])
    assert worker_state.stock_waits
    assert worker_state.wants_events
    assert 0 <= worker_state.silence < 5
    assert 0 <= worker_state.stopping_for < 5


def test_the_first_word_of_a_stop_counts(worker_state):
    worker_state.note_stop()
    time.sleep(0.05)
    worker_state.note_stop()
    assert worker_state.stopping_for >= 0.05


def test_a_wiped_board_is_a_new_workers(worker_state):
    named(worker_state.take())
    worker_state.node, worker_state.queues = uuid.uuid4(), ["mail"]
    worker_state.note_stop()
    worker_state.wipe()
    assert worker_state.occupied() == []
    assert (worker_state.stopping_for, worker_state.silence) == (None, 0.0)


def test_many_queues_fit():
    worker_state = WorkerState()
    names = sorted(f"queue-{number}" for number in range(3000))
    worker_state.queues = names
    assert worker_state.queues == names


def test_the_rows_behind_a_long_body_go_back_before_those_of_an_old_claim_are_begun():
    """Else nobody would renew what the supervisor gives back."""
    assert module.OLD < module.LONG


def test_who_dies_while_it_writes_a_document_keeps_nobody_waiting():
    """A reader keeps what it knows, and the next writer is read again."""
    worker_state = WorkerState()
    worker_state.limits = {"a": [1, None]}
    assert worker_state.limits == {"a": [1, None]}
    # As it is in mid-write.
    struct.pack_into("q", worker_state._memory, worker_state._limits.at, 3)
    assert worker_state.limits == {"a": [1, None]}
    worker_state.limits = {"b": [2, None]}
    assert worker_state.limits == {"b": [2, None]}


def test_a_pid_that_is_used_again_does_not_make_a_dead_slot_live(worker_state):
    """The process died while the database was away, so nobody could finish its job; by now its pid is another one's."""
    key = uuid.uuid4()
    forked(lambda: named(worker_state.take(), job=key))
    [dead] = worker_state.occupied()
    # The kernel gives a pid again when it has been through all others: here the slot says that of this very process.
    worker_state.pids[dead.index] = os.getpid()
    [read] = worker_state.occupied()
    assert (read.pid, read.job) == (os.getpid(), key)
    assert read.is_dead
    worker_state.clear(read)
    named(worker_state.take(), job=key)
    assert not worker_state.occupied()[0].is_dead


def test_nobody_signals_a_process_that_has_the_pid_of_a_dead_one(worker_state):
    """The limits of the dead one's job are over, and the worker is to stop: both send signals."""
    forked(lambda: named(worker_state.take()))
    [dead] = worker_state.occupied()
    other = os.fork()
    if other == 0:
        time.sleep(60)
        os._exit(0)
    worker_state.pids[dead.index] = other
    worker_state.occupied()[0].signal(signal.SIGKILL)
    assert is_alive(other)
    named(slot := worker_state.take())
    worker_state.pids[slot.index], worker_state._starts[slot.index] = other, module.start_of(other)
    worker_state.read(slot.index).signal(signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == -signal.SIGKILL


def test_a_process_looks_for_slots_while_no_other_does():
    state, (asked, ask), (done, tell) = WorkerState(), os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        os.read(asked, 1)
        state.take()
        os.write(tell, b".")
        os._exit(0)
    with state.alone():
        os.write(ask, b".")
        assert not select.select([done], [], [], 0.3)[0], "it did not wait"
    assert select.select([done], [], [], 30)[0]
    assert os.waitpid(pid, 0)[1] == 0
