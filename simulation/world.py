"""The clock, and those who live by it: processes and threads, each a greenlet, and the pipes between them.

``install()`` comes before Django and ``jobs`` are imported. Code that runs in an :class:`Actor` sees the simulated
clock, the process id of its own process and random numbers of the seed; all other code sees the machine's.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import greenlet

#: The simulated time begins here, in seconds since 1970 (2030-01-01). It is later than the server's own clock, by which
#: its sessions began: ``jobs`` compares the two.
EPOCH = 1893456000.0

#: The first process id: above those that Linux gives.
FIRST_PID = 10_000_000

_real = SimpleNamespace(
    **{name: getattr(time, name) for name in ("monotonic", "time", "time_ns", "sleep")},
    **{name: getattr(os, name) for name in ("getpid", "kill", "urandom", "read", "write", "_exit")},
)


class Process:
    """A process of the cluster. Its module globals are its own (``World.own``)."""

    def __init__(self, name: str, node: Any = None) -> None:
        self.pid = next(world.pids)
        self.name, self.node = name, node
        self.actors: list[Actor] = []
        self.is_alive = True
        self.paused_until = 0.0
        self.globals: dict[tuple[Any, str], Any] = {}
        self.when_dead: list[Callable[[], Any]] = []
        world.processes[self.pid] = self

    def start(self, target: Callable[[], Any], name: str = "main") -> Actor:
        actor = Actor(target, name, self)
        self.actors.append(actor)
        world.wake(actor)
        return actor

    def end(self) -> None:
        """It is gone, as after SIGKILL: no code of it runs any more. The server rolls its transactions back."""
        if not self.is_alive:
            return
        self.is_alive = False
        world.processes.pop(self.pid, None)
        for actor in self.actors:
            actor.is_over = True
            for link in list(actor.links):
                link.abandon()
        # Never collected: Python would run their ``finally`` blocks.
        world.graveyard += self.actors
        for call in self.when_dead:
            call()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so many seconds."""
        self.paused_until = max(self.paused_until, world.now + seconds)


class Actor(greenlet.greenlet):
    """A thread of a process."""

    def __init__(self, target: Callable[[], Any], name: str, process: Process) -> None:
        super().__init__(self._main, world.hub)
        self._target, self.name, self.process = target, name, process
        self.is_over = False
        #: Grows with each wait: an alarm of an earlier one wakes nobody.
        self.waits = 0
        #: Its connections to databases: what Django has for it, and what of them is open (``backend``).
        self.connections: dict[str, Any] = {}
        self.links: list[Any] = []
        self.joined: list[Actor] = []
        self.local: dict[int, dict[str, Any]] = {}

    def _main(self, _: Any) -> None:
        try:
            self._target()
        except BaseException as exc:
            world.failures.append(f"{world.now:.3f} {self.process.name} {self.name}: {exc!r}")
        self.is_over = True
        if self.name == "main":
            self.process.end()
        for link in list(self.links):
            link.abandon()
        for other in self.joined:
            world.wake(other)


class World:
    def __init__(self) -> None:
        self.hub = greenlet.getcurrent()
        self.random = random.Random(0)
        self.now = 0.0
        #: By how many seconds the database's clock is ahead of the simulated one.
        self.database_ahead = 0.0
        self.pids = itertools.count(FIRST_PID)
        self.processes: dict[int, Process] = {}
        self.graveyard: list[Actor] = []
        #: What ended a thread: nothing should.
        self.failures: list[str] = []
        #: Module globals that each process has for itself: (module, name) and how to make one.
        self.own: dict[tuple[Any, str], Callable[[], Any]] = {}
        #: Called when an actor stops working, before another begins.
        self.after_work: list[Callable[[Actor], Any]] = []
        self.actor: Actor | None = None
        #: What is noted while modules are imported is of the simulated clock.
        self.is_importing = False
        self._process: Process | None = None
        self._alarms: list[tuple[float, int, Any, int, bool]] = []
        self._numbers = itertools.count()

    def at(self, when: float, call: Callable[[], Any]) -> None:
        """Call it at a time, outside of any process."""
        heapq.heappush(self._alarms, (max(when, self.now), next(self._numbers), call, -1, False))

    def wake(self, actor: Actor) -> None:
        heapq.heappush(self._alarms, (self.now, next(self._numbers), actor, actor.waits, True))

    def wait(self, seconds: float | None) -> bool:
        """The current actor waits; True: somebody woke it before that time (None: whenever)."""
        actor = self.actor
        assert actor is not None
        actor.waits += 1
        if seconds is not None:
            when = self.now + max(0.0, seconds)
            heapq.heappush(self._alarms, (when, next(self._numbers), actor, actor.waits, False))
        return bool(self.hub.switch())

    def stop_here(self) -> None:
        """The current actor's process is gone."""
        self.hub.switch()

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        while self._alarms and not is_over():
            when, number, who, waits, is_woken = heapq.heappop(self._alarms)
            if when > until:
                heapq.heappush(self._alarms, (when, number, who, waits, is_woken))
                break
            self.now = max(self.now, when)
            if not isinstance(who, Actor):
                who()
            elif not who.is_over and who.waits == waits:
                if who.process.paused_until > self.now:
                    heapq.heappush(self._alarms, (who.process.paused_until, number, who, waits, is_woken))
                    continue
                who.waits += 1
                self.enter(who, lambda who=who, is_woken=is_woken: who.switch(is_woken))
        self.now = max(self.now, until) if not is_over() else self.now

    def enter(self, actor: Actor, call: Callable[[], Any]) -> None:
        """Call it as this actor."""
        process = actor.process
        if process is not self._process:
            if self._process is not None:
                for module, name in self.own:
                    self._process.globals[module, name] = getattr(module, name)
            for (module, name), make in self.own.items():
                key = (module, name)
                setattr(module, name, process.globals[key] if key in process.globals else make())
            if process.node is not None:
                process.node.enter()
            self._process = process
        self.actor = actor
        try:
            call()
        finally:
            self.actor = None
            for done in self.after_work:
                done(actor)

    # What the clocks and the system say

    def monotonic(self) -> float:
        return _real.monotonic() if self.actor is None and not self.is_importing else 1000.0 + self.now

    def time(self) -> float:
        if self.actor is None:
            return float(_real.time())
        node = self.actor.process.node
        return EPOCH + self.now + (0.0 if node is None else node.clock_ahead)

    def moment(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.time(), datetime.UTC)

    def time_ns(self) -> int:
        return _real.time_ns() if self.actor is None else round(self.time() * 1e6) * 1000

    def sleep(self, seconds: float) -> None:
        if self.actor is None:
            _real.sleep(seconds)
        else:
            self.wait(seconds)

    def getpid(self) -> int:
        return _real.getpid() if self.actor is None else self.actor.process.pid

    def urandom(self, size: int) -> bytes:
        return _real.urandom(size) if self.actor is None else self.random.randbytes(size)

    def kill(self, pid: int, number: int) -> None:
        if pid < FIRST_PID:
            _real.kill(pid, number)
            return
        process = self.processes.get(pid)
        if process is None:
            raise ProcessLookupError(pid)
        if number == signal.SIGKILL:
            process.end()
        elif number == signal.SIGTERM and process.node is not None:
            process.node.stop()
        if self.actor is not None and self.actor.is_over:
            self.stop_here()

    def exit(self, code: int) -> None:
        if self.actor is None:
            _real._exit(code)
        assert self.actor is not None
        self.actor.process.end()
        self.stop_here()

    def start_of(self, real: Callable[[int], int], pid: int) -> int:
        """When a process began, as ``worker_state`` reads it from ``/proc``; 0 if it is dead."""
        return real(pid) if pid < FIRST_PID else pid if pid in self.processes else 0


class Pipe:
    """Both ends of a pipe; waiting for it is waiting for bytes, or for its end."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False
        self._waiting: list[Actor] = []

    def write(self, data: bytes) -> int:
        self.data += data
        self.wake()
        return len(data)

    def close(self) -> None:
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        for actor in self._waiting:
            world.wake(actor)

    def read(self, most: int) -> bytes:
        if not self.data and not self.is_closed:
            raise BlockingIOError
        found, self.data = self.data[:most], self.data[most:]
        return found

    @property
    def is_ready(self) -> bool:
        return bool(self.data) or self.is_closed


def wait_for(pipes: list[Pipe], seconds: float | None) -> list[Pipe]:
    """Wait until one of the pipes has something; those that have."""
    if not any(pipe.is_ready for pipe in pipes):
        actor = world.actor
        assert actor is not None
        for pipe in pipes:
            pipe._waiting.append(actor)
        try:
            world.wait(seconds)
        finally:
            for pipe in pipes:
                pipe._waiting.remove(actor)
    elif seconds != 0:
        # Others have their turn; time stands still.
        world.wait(0.0)
    return [pipe for pipe in pipes if pipe.is_ready]


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Actor] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for actor in self._waiting:
            world.wake(actor)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            assert world.actor is not None
            self._waiting.append(world.actor)
            until = None if timeout is None else world.now + timeout
            while not self._is_set and (until is None or world.now < until):
                if not world.wait(None if until is None else until - world.now):
                    break
            self._waiting.remove(world.actor)
        return self._is_set


class Thread:
    """``threading.Thread``."""

    def __init__(self, target: Any, name: str = "", args: Any = (), daemon: bool = True) -> None:
        self._target, self._name, self._args = target, name, args
        self._actor: Actor | None = None

    def start(self) -> None:
        assert world.actor is not None
        self._actor = world.actor.process.start(lambda: self._target(*self._args), self._name)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.is_over

    def join(self, timeout: float | None = None) -> None:
        assert self._actor is not None
        assert world.actor is not None
        if not self._actor.is_over:
            self._actor.joined.append(world.actor)
            world.wait(timeout)


class Local:
    """``threading.local``, and Django's connections."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _locals(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        _locals(self)[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del _locals(self)[name]
        except KeyError:
            raise AttributeError(name) from None


_outside: dict[int, dict[str, Any]] = {}


def _locals(local: Local) -> dict[str, Any]:
    found = _outside if world.actor is None else world.actor.local
    return found.setdefault(id(local), {})


class Instead:
    """A module, with some names in it replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Seeded(random.SystemRandom):
    def getrandbits(self, bits: int) -> int:
        return super().getrandbits(bits) if world.actor is None else world.random.getrandbits(bits)

    def random(self) -> float:
        return super().random() if world.actor is None else world.random.random()


world = World()


def install(seed: int) -> None:
    world.random.seed(seed)
    random.seed(seed)
    for name in ("monotonic", "time", "time_ns", "sleep"):
        setattr(time, name, getattr(world, name))
    os.getpid, os.kill, os.urandom, os._exit = world.getpid, world.kill, world.urandom, world.exit
    random.SystemRandom = _Seeded
