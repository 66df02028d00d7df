"""The process beside a worker: it sends heartbeats, keeps time limits, and gives jobs of dead processes back.

It is a process of its own because no other place can always beat: a timer stops with a blocked event loop (``-P solo``,
soft shutdown), a thread breaks the forks of the pool, a pool child has work to do.
It ends when the worker's main process does: it reads EOF from its pipe. What processes share is in ``worker_state``.
"""

import json
import os
import select
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

from django.db import Error
from django.db.models.functions import Coalesce, Now
from django.utils.module_loading import import_string

from jobs import __version__, doors, extensions
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import BODY, IDLE, Occupied, dead, is_alive, worker_state
from jobs.maintenance import clock, rescue, turn
from jobs.models import Node
from jobs.store import databases, heartbeats, identity
from jobs.store.databases import SideDatabase
from jobs.store.identity import NotAdopted

#: Seconds between two looks at the pool's processes, at their deaths and at their time limits: while one is at work,
#: and while none is.
LOOK, IDLE_LOOK = 0.2, 0.5

#: The signal that tells the worker's main process of a dead process that it did not replace; a process without a
#: handler ignores it. Then the seconds that it has to replace one by itself, and between two such signals.
REPLACE, REPLACED_WITHIN = signal.SIGURG, 1.0

#: Seconds to wait for the pool's processes to die after their parent did.
LAST_WAIT = 5.0

#: What the supervisor says when its node is in the database. Anything else is the reason why it is not.
REGISTERED = b"1"


class Supervisor:
    """The supervisor's threads.

    The main thread beats and reads the worker's notes; its queries wait for no other thread. ``watch`` looks at the
    pool's processes without a database. Other threads use databases in turns: ``rescue`` finishes jobs of dead
    processes, ``clock`` does what is due, and polls; extensions add their own.
    """

    def __init__(self, main: int, node: dict[str, Any], pipe: int, ready: int) -> None:
        self.main_pid, self._node, self._pipe, self._ready = main, node, pipe, ready
        self._side = SideDatabase(is_apart=False)
        self._own = rescue.OwnJobs(main)
        self._registered = False
        #: Whether a database has lost this node's row (``manage.py flush``): without it this node claims nothing there.
        self._is_unknown = False
        #: What the node's row says of its queues, and of its stop.
        self._said: tuple[list[str], bool] | None = None
        self._saying = threading.Lock()
        self._unread = b""
        #: The calls that the worker's main process asked for: a function's path, and its arguments.
        self._wanted: SimpleQueue[list[Any]] = SimpleQueue()
        self._is_prefork = node["pool"] == "prefork"
        #: For each of the pool's processes: when the parent is told, if the process is dead then.
        self._processes: dict[int, float] = {}
        self._began = self._last_look = time.monotonic()
        #: The database is ours: maintenance may begin.
        self._admitted = threading.Event()
        self._stopping = threading.Event()
        self._fell = threading.Event()

    def main(self) -> None:
        _here[:] = [self]
        databases.leave_pools()
        targets: list[Callable[[], None]] = [self._watch, self._rescue, self._clock]
        threads = [threading.Thread(target=each, name=f"jobs-{each.__name__}", daemon=True) for each in targets]
        for run in chain.from_iterable(each() for each in extensions.through("threads")):
            name = f"jobs-{run.__module__}.{run.__name__}"
            threads.append(threading.Thread(target=self._extension, args=[run], name=name, daemon=True))
        for thread in threads:
            thread.start()
        next_heartbeat = 0.0
        while self._listen(next_heartbeat - time.monotonic()):
            self._last_look = time.monotonic()
            if time.monotonic() >= next_heartbeat:
                # A beat that failed is repeated soon: nothing is claimed here as long as the node is silent.
                has_written = self._try(self._heartbeat)
                next_heartbeat = time.monotonic() + (conf().HEARTBEAT if has_written else min(1.0, conf().HEARTBEAT))
            if not all(thread.is_alive() for thread in threads):
                raise RuntimeError("a thread of the supervisor ended")
        for event in (self._stopping, self._admitted, self._fell):
            event.set()
        for thread in threads:
            thread.join(LAST_WAIT)
        self._sign_off()

    def _until(self, pause: float) -> float:
        """Seconds until the next look.

        All threads look at the same moments: a process that has slept is slow at first, and so it is slow only once.
        Heartbeats keep pauses of their own, because other nodes measure time by them.
        """
        left = pause - (time.monotonic() - self._began) % pause
        return left if left > pause / 2 else left + pause

    # The main thread

    def _listen(self, timeout: float) -> bool:
        """Wait for notes or the timeout; False: the worker's main process is gone."""
        if not select.select([self._pipe], [], [], max(0.0, timeout))[0]:
            return True
        data = os.read(self._pipe, 65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in filter(None, lines):
            try:
                is_urgent, *wanted = json.loads(line)
            except ValueError:
                logger.error("a note was cut: %.200r", line, extra=worker_state.about("note_lost"))
                continue
            if is_urgent:
                self._try(partial(_call, *wanted))
            else:
                self._wanted.put(wanted)
                self._fell.set()
        return bool(data)

    def end_or_ask(self, slot: Occupied, kind: str, text: str, number: int = signal.SIGKILL) -> None:
        """End the run with its process. An extension ends a run alone if the process has other runs."""
        if self._is_prefork:
            self._end_run(slot, kind, text, number)

    def _end_run(self, slot: Occupied, kind: str, text: str, number: int = signal.SIGKILL) -> None:
        # Race: the process may have another job by now.
        now = worker_state.read(slot.index)
        if (now.pid, now.job, now.lease) == (slot.pid, slot.job, slot.lease):
            self._own.expect_end(slot, kind, text)
            slot.signal(number)

    def _heartbeat(self) -> None:
        if not self._registered:
            self._register()
        elif not heartbeats.send(self._side, worker_state.node):
            # This node was declared dead: under the old id it must never claim or finish again.
            worker_state.node = uuid.uuid4()
            self._register()
        worker_state.note_heartbeat()
        if self._is_unknown:
            # After the note: another database may be away, and claims go on in those that are not.
            self._register()
        self.say()

    def say(self) -> None:
        """Keep the node's row up to date. A quiet node consumes nothing.

        Race: the main thread calls it at each beat, an extension's thread when a person told the node something.
        """
        with self._saying:
            queues = [] if worker_state.is_quiet else worker_state.queues
            says = queues, worker_state.stopping_for is not None
            if says == self._said:
                return
            row = {"queues": queues, "stopping_at": Coalesce("stopping_at", Now()) if says[1] else None}
            for alias in conf().DATABASES:
                Node.objects.using(alias).filter(pk=worker_state.node).update(**row)
            self._said = says

    def _admit(self) -> None:
        identity.check_all()
        self._admitted.set()

    def _register(self) -> None:
        self._said = None
        self._admit()
        version = conf().VERSION or __version__
        row = {"hostname": socket.gethostname(), **self._node, "pid": self.main_pid, "version": version}
        for alias in conf().DATABASES:
            nodes = Node.objects.using(alias)
            nodes.get_or_create(pk=worker_state.node, defaults={**row, "queues": worker_state.queues})
        if not heartbeats.send(self._side, worker_state.node):
            heartbeats.first(self._side, worker_state.node)
        self._registered, self._is_unknown = True, False
        # A thread of the worker may claim as soon as it hears of the node.
        for registered in extensions.through("registered"):
            self._try(registered)
        logger.info("node %s is up", worker_state.node, extra=worker_state.about("node_up"))
        os.write(self._ready, REGISTERED)

    def _sign_off(self) -> None:
        if not self._registered and not self._try(self._admit):
            return
        deadline = time.monotonic() + LAST_WAIT
        while len(dead(slots := worker_state.at_work())) < len(slots):
            if time.monotonic() > deadline:
                # Bodies outlive their parent: no process may run their jobs yet. Rescue waits until beats have stopped.
                return
            time.sleep(0.02)
        is_stopping = worker_state.stopping_for is not None
        # The worker state knows better than the rows what was begun.
        self._take_turn(self._own.finish_dead)
        if is_stopping:
            self._try(self._own.hand_back_all)
        # If the worker has not said that it stops, its main process was killed.
        self._try(lambda: rescue.bury(worker_state.node, by_itself=is_stopping))
        for alias in conf().DATABASES:
            self._try(partial(rescue.rescue_all, alias))
        self._try(lambda: heartbeats.delete(self._side, worker_state.node))

    # The thread that watches: it keeps time limits also while a beat hangs (on a dead link; on SQLite behind a body)

    def _watch(self) -> None:
        pause, woke = LOOK, time.monotonic()
        while not self._stopping.wait(self._until(pause)):
            slots = worker_state.occupied()
            pause = LOOK if any(slot.phase != IDLE for slot in slots) else IDLE_LOOK
            self._look(slots)
            was_paused, woke = time.monotonic() - woke > LAST_WAIT, time.monotonic()
            if was_paused:
                # This process or its machine was paused: nothing hangs.
                self._last_look = woke
            elif woke - self._last_look > 2 * conf().DEAD_AFTER:
                # A beat that hangs on a dead link would hang for hours: start again, with new connections.
                logger.error(
                    "the heartbeat hangs: the supervisor starts again", extra=worker_state.about("supervisor_hangs")
                )
                os._exit(1)

    def _look(self, slots: list[Occupied]) -> None:
        gone = dead(slots)
        if self._is_prefork:
            self._enforce_limits(slots)
            self._have_replaced({slot.pid for slot in slots}, {slot.pid for slot in gone})
        if gone or any(slot.holds_up for slot in slots):
            self._fell.set()

    def _enforce_limits(self, slots: list[Occupied]) -> None:
        now = time.monotonic()
        for slot in slots:
            if not slot.has_job:
                continue
            if 0 < slot.hard_at < now and not slot.is_dead:
                limit = round(slot.hard_at - slot.began, 3)
                about = worker_state.about("timed_out", job=str(slot.job), task=worker_state.text(slot).get("name"))
                logger.error("the job %s ran longer than its hard time limit of %s s", slot.job, limit, extra=about)
                self._end_run(slot, "TimeLimitExceeded", f"TimeLimitExceeded({limit:g})")
            elif 0 < slot.soft_at < now and slot.phase == BODY:
                # Sent at each look: the process takes it once, and only in the body.
                slot.signal(signal.SIGUSR1)

    def _have_replaced(self, found: set[int], gone: set[int]) -> None:
        """Interrupt the main process: while it waits for a silent broker, it does not replace dead processes."""
        now = time.monotonic()
        # Race: the rescue thread frees the slots of dead processes.
        alive, new = found - gone, found - self._processes.keys()
        self._processes |= dict.fromkeys(alive | new, now + REPLACED_WITHIN)
        for pid in self._processes.keys() - alive:
            if not os.path.exists(f"/proc/{pid}"):
                del self._processes[pid]
            elif is_alive(pid):
                self._processes[pid] = now + REPLACED_WITHIN
            elif self._processes[pid] < now:
                self._processes[pid] = now + REPLACED_WITHIN
                with suppress(ProcessLookupError):
                    os.kill(self.main_pid, REPLACE)

    # The threads that take turns

    def _rescue(self) -> None:
        watch = rescue.Rescue(SideDatabase(is_apart=False), lambda: worker_state.node)
        next_watch = 0.0
        self._admitted.wait()
        while not self._stopping.is_set():
            self._fell.clear()
            self._take_turn(self._do_wanted)
            self._take_turn(self._own.finish_dead)
            self._take_turn(self._own.hand_back_waiting)
            if time.monotonic() >= next_watch:
                next_watch = time.monotonic() + conf().HEARTBEAT
                if self._registered:
                    self._take_turn(self._own.hand_back_orphans)
                    self._take_turn(self._look_for_itself)
                self._take_turn(watch.run_once)
            self._fell.wait(max(0.0, next_watch - time.monotonic()))

    def _look_for_itself(self) -> None:
        """Find out whether a database has lost this node's row: the next beat writes it again."""
        own = Node.objects.filter(pk=worker_state.node)
        self._is_unknown = databases.everywhere(lambda alias: not own.using(alias).exists()) > 0

    def _do_wanted(self) -> None:
        while not self._wanted.empty():
            wanted = self._wanted.get()
            try:
                _call(*wanted)
            except Error:
                self._wanted.put(wanted)
                raise

    def _clock(self) -> None:
        self._admitted.wait()
        while not self._stopping.is_set():
            self._take_turn(clock.tick)
            self._stopping.wait(self._until(conf().POLL_INTERVAL))

    def _extension(self, run: doors.Thread) -> None:
        self._admitted.wait()
        run(self._stopping, self._take_turn)

    def _take_turn(self, action: Callable[[], Any]) -> bool:
        """Try it in a turn of this thread."""
        with extensions.instead(turn)():
            return self._try(action)

    def _try(self, action: Callable[[], Any]) -> bool:
        """Log an error instead of raising it, so that the next tick comes; returns whether there was none."""
        try:
            action()
            return True
        except NotAdopted:
            raise
        except Exception as exc:
            databases.note_failure(exc, "the supervisor", worker_state.about("supervisor_error"))
            return False


def _call(path: str, *given: Any) -> None:
    import_string(path)(*given)


_here: list[Supervisor] = []


def here() -> Supervisor:
    """The supervisor, in whose process the caller is."""
    return _here[0]
