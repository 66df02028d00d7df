"""What a process of the worker writes on the board is what the companion reads there, whatever happens to either."""

from __future__ import annotations

import os
import signal
import struct
import time
import uuid

import pytest

from jobs.lifecycle import board as module
from jobs.lifecycle.board import BODY, BUSY, IDLE, NAMED, SLOTS, Board, is_alive
from tests.helpers.servers import wait_for


@pytest.fixture
def board() -> Board:
    return Board()


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


def test_a_slot_is_read_as_it_was_written(board):
    slot, key, now = board.take(), uuid.uuid4(), time.monotonic()
    named(slot, job=key, soft=10.0, hard=20.0)
    [read] = board.occupied()
    assert (read.pid, read.phase, read.job, read.lease) == (os.getpid(), NAMED, key, 3)
    assert (read.token, read.batch) == (2**62 + 1, 2**61 + 1)
    assert now <= read.began <= time.monotonic()
    assert (round(read.soft_at - read.began), round(read.hard_at - read.began)) == (10, 20)
    assert read.has_job
    assert not read.is_dead


def test_a_run_without_limits_has_none(board):
    slot = board.take()
    named(slot)
    [read] = board.occupied()
    assert (slot.soft_at, read.soft_at, read.hard_at) == (0.0, 0.0, 0.0)


def test_a_token_of_its_own_changes_nothing_else(board):
    slot = board.take()
    named(slot, soft=10.0, hard=20.0)
    [before] = board.occupied()
    slot.retoken(5)
    [after] = board.occupied()
    assert after.token == 5
    for name in ("pid", "phase", "lease", "began", "soft_at", "hard_at", "job"):
        assert getattr(after, name) == getattr(before, name), name


def test_the_body_is_a_phase_of_its_own(board):
    slot = board.take()
    named(slot)
    slot.enter(BODY)
    assert (slot.phase, board.occupied()[0].phase) == (BODY, BODY)
    slot.enter(NAMED)
    assert (slot.phase, board.occupied()[0].phase) == (NAMED, NAMED)


def test_between_two_jobs_a_process_has_none_but_keeps_what_waits(board):
    slot = board.take()
    named(slot)
    slot.rest(BUSY, 77)
    [read] = board.occupied()
    assert (read.phase, read.has_job, read.batch, read.token, read.job.int) == (BUSY, False, 77, 0, 0)


def test_who_is_busy_is_known_by_its_process(board):
    slot = board.take()
    assert not board.is_busy(os.getpid())
    assert board.at_work() == []
    slot.rest(BUSY)
    assert board.is_busy(os.getpid())
    assert board.at_work() == board.occupied()
    assert not board.is_busy(2**22 + 1)


def test_a_slot_that_was_left_is_free_for_the_next(board):
    slot = board.take()
    named(slot)
    slot.free()
    assert board.occupied() == []
    again = board.take()
    [read] = board.occupied()
    assert (read.phase, read.has_job, again.phase) == (IDLE, False, IDLE)


def test_each_thread_of_a_process_has_a_slot_of_its_own(board):
    keys = [uuid.uuid4() for _ in range(8)]
    for key in keys:
        named(board.take(), job=key)
    assert {slot.job for slot in board.occupied()} == set(keys)
    assert len({slot.index for slot in board.occupied()}) == 8


def test_more_than_it_has_room_for_is_an_error_that_says_so(board):
    for _ in range(SLOTS):
        board.take()
    with pytest.raises(RuntimeError, match="start a second worker"):
        board.take()


def test_a_dead_process_keeps_its_slot_until_it_was_settled(board):
    key = uuid.uuid4()

    def die():
        slot = board.take()
        named(slot, job=key)
        slot.enter(BODY)

    child = forked(die)
    [read] = board.occupied()
    assert (read.pid, read.job, read.phase, read.is_dead) == (child, key, BODY, True)
    board.clear(read)
    assert board.occupied() == []


def test_a_process_that_nobody_has_reaped_is_dead():
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        wait_for(lambda: not is_alive(child), 5, "it is dead")
        assert is_alive(os.getpid())
    finally:
        os.waitpid(child, 0)


def test_what_people_read_is_of_the_job_that_is_there(board):
    slot, key = board.take(), uuid.uuid4()
    named(slot, job=key, text=b'{"id": "%s", "name": "tests.tasks.noop"}' % str(key).encode())
    [read] = board.occupied()
    assert board.text(read)["name"] == "tests.tasks.noop"
    named(slot, text=b'{"id": "another"}')
    assert board.text(read) == {}
    named(slot, job=key, text=b"{broken")
    assert board.text(read) == {}
    named(slot, job=key, text=b"x" * 100_000)
    assert board.text(read) == {}, "too long a text does no harm to the slots behind it"
    assert len(board.occupied()) == 1


def test_all_processes_share_what_is_said_of_the_worker(board):
    node = uuid.uuid4()

    def tell():
        board.node = node
        board.queues = ["mail", "celery"]
        board.stock_waits = True
        board.wants_events = True
        board.note_beat()
        board.note_stop()

    assert (board.silence, board.stopping_for, board.ending_for) == (0.0, None, None)
    forked(tell)
    assert (board.node, board.queues) == (node, ["celery", "mail"])
    assert board.stock_waits
    assert board.wants_events
    assert 0 <= board.silence < 5
    assert 0 <= board.stopping_for < 5
    assert board.ending_for is None


def test_the_first_word_of_a_stop_counts(board):
    board.note_stop()
    time.sleep(0.05)
    board.note_stop()
    board.note_end()
    assert board.stopping_for >= 0.05
    assert board.ending_for < 0.05


def test_who_has_to_end_at_once_has_to_stop(board):
    board.note_end()
    assert board.stopping_for is not None


def test_a_wiped_board_is_a_new_workers(board):
    named(board.take())
    board.node, board.queues = uuid.uuid4(), ["mail"]
    board.note_end()
    board.wipe()
    assert board.occupied() == []
    assert (board.stopping_for, board.ending_for, board.silence) == (None, None, 0.0)


def test_many_queues_fit():
    board = Board()
    names = sorted(f"queue-{number}" for number in range(3000))
    board.queues = names
    assert board.queues == names


def test_the_rows_behind_a_long_body_go_back_before_those_of_an_old_claim_are_begun():
    """Else nobody would renew what the companion gives back."""
    assert module.OLD < module.LONG


def test_who_dies_while_it_writes_a_document_keeps_nobody_waiting():
    """A reader keeps what it knows, and the next writer is read again."""
    board = Board()
    board.limits = {"a": [1, None]}
    assert board.limits == {"a": [1, None]}
    # As it is in mid-write.
    struct.pack_into("q", board._memory, board._limits.at, 3)
    assert board.limits == {"a": [1, None]}
    board.limits = {"b": [2, None]}
    assert board.limits == {"b": [2, None]}


def test_a_pid_that_is_used_again_does_not_make_a_dead_slot_live(board):
    """The process died while the database was away, so nobody could settle its job; by now its pid is another one's."""
    key = uuid.uuid4()
    forked(lambda: named(board.take(), job=key))
    [dead] = board.occupied()
    # The kernel gives a pid again when it has been through all others: here the slot says that of this very process.
    board._pids[dead.index] = os.getpid()
    [read] = board.occupied()
    assert (read.pid, read.job) == (os.getpid(), key)
    assert read.is_dead
    board.clear(read)
    named(board.take(), job=key)
    assert not board.occupied()[0].is_dead


def test_nobody_signals_a_process_that_has_the_pid_of_a_dead_one(board):
    """The limits of the dead one's job are over, and the worker is to stop: both send signals."""
    forked(lambda: named(board.take()))
    [dead] = board.occupied()
    other = os.fork()
    if other == 0:
        time.sleep(60)
        os._exit(0)
    board._pids[dead.index] = other
    board.occupied()[0].signal(signal.SIGKILL)
    assert is_alive(other)
    named(slot := board.take())
    board._pids[slot._index], board._starts[slot._index] = other, module.start_of(other)
    board.read(slot._index).signal(signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == -signal.SIGKILL
