"""A worker of the cluster: its main process, its supervisor, and the processes that run jobs."""

from __future__ import annotations

import os
import select
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.db import connections

from jobs import extensions
from jobs.contrib.listening import listener
from jobs.contrib.operator import doors as operator
from jobs.contrib.shared_connections import turns
from jobs.contrib.short_looks import clock as short_looks
from jobs.contrib.unknown_tasks import parking
from jobs.lifecycle import wakeups
from jobs.lifecycle import worker_state as states
from jobs.lifecycle.wakeups import wakeup
from jobs.lifecycle.worker_state import WorkerState, worker_state
from jobs.maintenance import Seldom, clock, rescue
from jobs.store import databases
from jobs.worker import pool, supervisor
from jobs.worker.runner import Runner
from simulation.backend import base
from simulation.tasks import app
from simulation.world import Event, Instead, Local, Pipe, Process, Thread, wait_for, world

#: Seconds until a pool replaces a dead process, and a watchdog its supervisor; between the least and the most.
REPLACED = (0.05, 1.0)

#: Bytes that a pipe holds.
FULL = 1 << 16


def prepare() -> None:
    """Give the modules of ``jobs`` simulated threads and pipes, and each process module globals of its own."""
    threads = Instead(threading, Event=Event, Thread=Thread, local=Local)
    system = Instead(os, read=_read, write=_write)
    for module in (supervisor, turns, listener):
        module.threading = threads
    for module in (supervisor, wakeups):
        module.os = system
    for module in (supervisor, listener):
        module.select = Instead(select, select=base.select)
    listener.Notifications = base.Notifications
    for module in (rescue, states):
        module.start_of = partial(world.start_of, states.start_of)
    connections._connections = Local()
    world.own = {
        (wakeups, "_notified"): dict,
        (databases, "_complaints"): dict,
        (short_looks, "_positions"): lambda: defaultdict(short_looks._Position),
        (clock, "_unasked"): set,
        (parking, "_imported"): dict,
        (parking, "_seldom"): lambda: Seldom(20),
        (rescue.Rescue, "living"): dict,
        (turns, "_turns"): lambda: None,
        (rescue, "_reported"): set,
        (rescue, "_waiting"): set,
        (operator, "_told"): Event,
        (operator, "_Asked"): lambda: SimpleNamespace(at=0.0),
    }
    world.after_work.append(base.server.hand_on)


def _read(fd: Any, most: int) -> bytes:
    return fd.read(most) if isinstance(fd, Pipe) else os.read(fd, most)


def _write(fd: Any, data: bytes) -> int:
    if not isinstance(fd, Pipe):
        return os.write(fd, data)
    if len(fd.data) + len(data) > FULL:
        raise BlockingIOError
    return fd.write(data)


class Poll:
    """``select.poll`` of a process of the pool: the pool's own pipe, and the wake-ups."""

    def __init__(self, node: Node, pipes: list[Pipe]) -> None:
        self._node, self._pipes = node, pipes

    def poll(self, milliseconds: float) -> list[Any]:
        if milliseconds == 0:
            return [(pipe, 0) for pipe in self._pipes if pipe.is_ready]
        ready = wait_for(self._pipes, milliseconds / 1000)
        if self._node.wakeup in ready:
            counts["woken"] += 1
        # The other end of the wake-ups is compared with their descriptor.
        return [(wakeup.fileno() if pipe is self._node.wakeup else pipe, 0) for pipe in ready]


#: How often processes of pools were woken.
counts: dict[str, int] = defaultdict(int)


class Node:
    def __init__(self, name: str, processes: int, when_over: Callable[[Node], None]) -> None:
        self.name, self._size, self._when_over = name, processes, when_over
        self.clock_ahead = 0.0
        self.is_cut = False
        self.is_gone = False
        self.state = WorkerState().__dict__
        self.wakeup = Pipe()
        self._wakeup = {"_reader": self.wakeup, "_writer": self.wakeup, "others": []}
        #: From the main process to its supervisor, back, and to its children.
        self._pipe, self._ready, self._inbox = Pipe(), Pipe(), Pipe()
        self._stop = Event()
        self.children: list[Process] = []
        self.main = Process("main", self)
        self.supervisor: Process | None = None
        self.main.when_dead.append(self._main_died)
        self.main.start(self._run)

    def enter(self) -> None:
        worker_state.__dict__ = self.state
        wakeup.__dict__ = self._wakeup

    @property
    def is_up(self) -> bool:
        return self.main.is_alive and bool(self.children) and not self._stop.is_set()

    def everything(self) -> Iterator[Process]:
        yield from (self.main, *self.children)
        if self.supervisor is not None:
            yield self.supervisor

    def occupied(self, process: Process) -> list[tuple[uuid.UUID, int]]:
        """The job, and its lease, that the process has."""
        self.enter()
        world._process = None
        return [(slot.job, slot.lease) for slot in worker_state.occupied() if slot.pid == process.pid and slot.has_job]

    # What happens to it

    def stop(self) -> None:
        """SIGTERM to its main process."""
        self._stop.set()

    def lose_power(self) -> None:
        self.is_gone = True
        for process in list(self.everything()):
            process.end()
        self._when_over(self)

    # Its processes

    def _run(self) -> None:
        # As ``Handle.start`` does before it forks.
        worker_state.node = uuid.uuid4()
        worker_state.wipe()
        worker_state.queues = ["celery"]
        self._start_supervisor()
        wait_for([self._ready], None)
        for _ in range(self._size):
            self._start_child()
        self._stop.wait()
        # As ``jobs.worker.bootsteps`` does, and Celery's pool.
        worker_state.note_stop()
        self._inbox.close()
        while any(child.is_alive for child in self.children):
            world.wait(0.1)

    def _start_supervisor(self) -> None:
        if self.is_gone or (self.supervisor is not None and self.supervisor.is_alive):
            return
        about = {"hostname": self.name, "pool": "prefork", "concurrency": self._size, "tasks": TASKS}
        process = self.supervisor = Process("supervisor", self)
        main = extensions.instead(supervisor.Supervisor)(self.main.pid, about, self._pipe, self._ready)
        is_over = False

        def run() -> None:
            nonlocal is_over
            main.main()
            is_over = True

        def died() -> None:
            if is_over:
                self.is_gone = True
                self._when_over(self)
            elif not self.is_gone:
                world.at(world.now + world.random.uniform(*REPLACED), self._start_supervisor)

        process.when_dead.append(died)
        process.start(run)

    def _start_child(self) -> None:
        if not self.main.is_alive or self._stop.is_set():
            return
        process = Process("child", self)
        self.children.append(process)

        def died() -> None:
            self.children.remove(process)
            world.at(world.now + world.random.uniform(*REPLACED), self._start_child)

        process.when_dead.append(died)
        process.start(self._claim_and_run)

    def _claim_and_run(self) -> None:
        runner = extensions.instead(Runner)(app, self.name)
        inbox, both = Poll(self, [self._inbox]), Poll(self, [self._inbox, self.wakeup])
        wait = partial(pool.wait, lambda seconds: both.poll(seconds * 1000), self._inbox, wakeup)
        pool._run_jobs(runner, inbox, wait, None)

    def _main_died(self) -> None:
        # Linux ends the pool's processes with it, and its supervisor reads EOF.
        for child in list(self.children):
            child.end()
        self._pipe.close()


TASKS = sorted(name for name in app.tasks if not name.startswith("celery."))
