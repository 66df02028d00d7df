"""The process beside a worker: it beats for the node, hears rings, gives back what fell, and watches the time.

It is a process of its own because every other place stops beating at the wrong time: a timer with a blocked
event loop (``-P solo``, soft shutdown), a thread breaks the forks of the pool, a pool child has work to do.
A supervisor, which does nothing else, starts it again when it dies alone. Both end when the worker's main
process does: they read EOF from its pipe. The signals that stop a worker are sent to its whole group and are
ignored here, so that a long warm shutdown is not taken for a death.
"""

from __future__ import annotations

import atexit
import json
import logging
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
from queue import SimpleQueue
from typing import Any

from django.db import Error, connections
from django.db.models.functions import Coalesce, Now

from jobs import __version__, databases, instance, lifecycle, listener
from jobs.board import BODY, IDLE, LONG, Board, Occupied, board, is_alive
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.instance import NotAdopted
from jobs.maintenance import rescue
from jobs.maintenance.clock import Clock
from jobs.maintenance.prune import Prune
from jobs.maintenance.tally import Count
from jobs.models import Node

logger = logging.getLogger("jobs")

#: Seconds between two looks at the pool's processes, at their deaths and at their time limits: while one is at work,
#: and while none is.
LOOK, IDLE_LOOK = 0.2, 0.5

#: Tells the worker's main process that a dead process of its pool is not replaced. Nobody dies of it who knows it not.
REPLACE = signal.SIGURG

#: Seconds that the main process has for that by itself, and between two such signals.
REPLACED_WITHIN = 1.0

#: Seconds of one round of pruning; the rest waits for the next round.
PRUNE_BUDGET = 2.0

#: Seconds between two counts of what ended.
COUNT_INTERVAL = 20.0

#: Seconds to wait for the pool's processes to die after their parent did.
LAST_WAIT = 5.0

#: What the companion says when its node is in the database. Anything else is the reason why it is not.
REGISTERED = b"1"


#: Seconds that a worker has to end by itself after it was told not to wait for its bodies any longer.
COLD_TIMEOUT = 10.0

#: Seconds for the rest of the main process's end.
LAST_ALARM = 5

_handle: Companion | None = None


def start(app: Any, queues: list[str], tasks: list[str], pool: str, concurrency: int) -> Companion:
    """Fork the companion of this process, which is a worker; ``tell`` reaches it from now on."""
    global _handle
    _handle = Companion(app, board, queues, tasks, pool, concurrency)
    _handle.start()
    return _handle


def tell(**note: Any) -> None:
    """Hand a note to this process's companion, if it has one; safe in a signal handler, never blocks, never raises."""
    if _handle is not None:
        _handle.tell(note)


class Companion:
    """The worker's handle on its companion."""

    def __init__(
        self, app: Any, board: Board, queues: list[str], tasks: list[str], pool: str = "", concurrency: int = 0
    ) -> None:
        self.app = app
        self.board = board
        #: Read from the board from then on.
        self.queues = queues
        self.tasks = tasks
        self.pool = pool
        self.concurrency = concurrency
        self._pid = 0
        self._pipe = -1
        self._ready = -1
        self._main = os.getpid()

    def start(self) -> None:
        """Fork the supervisor. Call it before anything else in this process forks or holds a connection."""
        self.board.node = uuid.uuid4()
        self.board.wipe()
        self.board.queues = self.queues
        connections.close_all()
        pipe, self._pipe = os.pipe()
        self._ready, ready = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._pipe)
                os.close(self._ready)
                _supervise(self, pipe, ready)
            finally:
                os._exit(0)
        os.close(pipe)
        os.close(ready)
        # A companion that hangs must not hang the worker; a note is shorter than PIPE_BUF: all of it or nothing.
        os.set_blocking(self._pipe, False)
        # A pool child that kept the pipe open would hide the main process's death.
        os.register_at_fork(after_in_child=self._close_in_child)
        atexit.register(self._end)

    def wait_until_registered(self, timeout: float) -> bool:
        """Wait until the node is in the database, so that its children may claim.

        Raises:
            NotAdopted: the database is a copy of another one; the companion has ended.
        """
        readable, _, _ = select.select([self._ready], [], [], timeout)
        if not readable:
            return False
        if reason := self.last_words():
            raise NotAdopted(reason)
        return self.is_alive()

    def last_words(self) -> str:
        """Why the companion ended, or is about to; empty if it did not say."""
        os.set_blocking(self._ready, False)
        try:
            return os.read(self._ready, 1 << 16).lstrip(REGISTERED).decode(errors="replace")
        except BlockingIOError:
            return ""

    def tell(self, note: dict[str, Any]) -> None:
        if os.getpid() != self._main or self._pipe < 0:
            return
        try:
            os.write(self._pipe, json.dumps(note).encode() + b"\n")
        except OSError:
            logger.debug("the companion takes no note", exc_info=True, extra=self.board.about("note_lost"))

    def stop(self) -> None:
        """Let the companion end, and give it a moment to hand back and sign off."""
        if os.getpid() != self._main or self._pipe < 0:
            return
        os.close(self._pipe)
        self._pipe = -1
        if any(slot.pid == self._main and slot.phase != IDLE for slot in self.board.occupied()):
            # Threads in their bodies: they end with this process, and the companion gives their jobs back then.
            return
        deadline = time.monotonic() + LAST_WAIT + 2
        while time.monotonic() < deadline:
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                return
            select.select([], [], [], 0.02)

    def _end(self) -> None:
        """At the end of the worker's main process, when all is handed back and signed off.

        What follows is billiard's: it joins a pool process that was started during the stop, without a bound.
        """
        self.stop()
        if os.getpid() == self._main:
            signal.signal(signal.SIGALRM, lambda *args: os._exit(0))
            signal.alarm(LAST_ALARM)

    def _close_in_child(self) -> None:
        if self._pipe >= 0 and os.getpid() != self._main:
            try:
                os.close(self._pipe)
                os.close(self._ready)
            except OSError:
                pass
            self._pipe = -1

    def is_alive(self) -> bool:
        """Whether the supervisor is there; asked by the worker's main process, its parent."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            return False


def _supervise(handle: Companion, pipe: int, ready: int) -> None:
    for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        child = os.fork()
        if child == 0:
            try:
                _Process(handle, pipe, ready).main()
            except NotAdopted as exc:
                # At once: a database that is not ours is not even signed off from.
                os.write(ready, str(exc).encode()[: select.PIPE_BUF])
                os._exit(0)
            except BaseException:
                logger.exception("the companion failed", extra=handle.board.about("companion_failed"))
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        logger.error("the companion died and is started again", extra=handle.board.about("companion_restarted"))
        # EOF means that the worker is gone as well; a new companion then only signs off.
        select.select([pipe], [], [], 0.5)


class _Process:
    """Threads with connections of their own, so that none waits for another's queries.

    The main one beats and listens to the worker. ``watch`` looks at the pool's processes, and needs no database.
    ``rescue`` settles what fell. ``clock`` does what time brings, and polls. ``tidy`` prunes and counts. One more for
    each database hears rings.
    """

    def __init__(self, handle: Companion, pipe: int, ready: int) -> None:
        self.handle = handle
        self.board = handle.board
        self.pipe = pipe
        self.ready = ready
        self.side = SideDatabase()
        self.own = rescue.OwnJobs(self.board, handle._main)
        self.registered = False
        #: The worker consumes from others than the node's row says, or stops.
        self._is_other = self.board.stopping_for is not None
        self._unread = b""
        #: What to cancel, by id or by stamps, and the signal that ends its process.
        self._revoked: SimpleQueue[tuple[uuid.UUID | dict[str, list[Any]], int | None]] = SimpleQueue()
        self._is_prefork = handle.pool == "prefork"
        #: The pool's processes, and until when their parent has time to replace each that dies.
        self._processes: dict[int, float] = {}
        self._last_look = time.monotonic()
        #: The database is ours: maintenance may begin.
        self._admitted = threading.Event()
        self._stopping = threading.Event()
        self._fell = threading.Event()

    def main(self) -> None:
        threads = [
            threading.Thread(target=target, name=f"jobs-{target.__name__}", daemon=True)
            for target in (self._watch, self._rescue, self._clock, self._tidy)
        ]
        listeners = [listener.listener_of(alias, self._stopping) for alias in conf().DATABASES]
        for thread in [*threads, *filter(None, listeners)]:
            thread.start()
        threading.Thread(target=self._guard, name="jobs-guard", daemon=True).start()
        next_beat = 0.0
        while self._listen(LOOK if self.board.stopping_for is not None else min(1.0, next_beat - time.monotonic())):
            self._last_look = time.monotonic()
            # Before the beat, which may hang: this needs no database.
            if self._is_overdue():
                self._give_up()
            if time.monotonic() >= next_beat:
                # A beat that failed is repeated soon: nothing is claimed here as long as the node is silent.
                pause = conf().HEARTBEAT if self._try(self._beat) else min(1.0, conf().HEARTBEAT)
                next_beat = time.monotonic() + pause
            if not all(thread.is_alive() for thread in threads):
                raise RuntimeError("a thread of the companion ended")
        self._stopping.set()
        self._admitted.set()
        self._fell.set()
        for thread in threads:
            thread.join(LAST_WAIT)
        self._sign_off()

    # The main thread

    def _listen(self, timeout: float) -> bool:
        """Wait for notes or the timeout; False: the worker's main process is gone."""
        readable, _, _ = select.select([self.pipe], [], [], max(0.0, timeout))
        if not readable:
            return True
        data = os.read(self.pipe, 65536)
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            note = json.loads(line)
            # These need no database, and have to be known before the death that they announce is seen.
            if "stopping" in note:
                self.board.note_stop()
                self._is_other = True
            elif "ending" in note:
                self.board.note_end()
                self._is_other = True
            elif "queues" in note:
                self._is_other = True
            elif "revoked" in note:
                key = uuid.UUID(note["revoked"])
                if note["signal"] is not None:
                    self._terminate(key, note["signal"])
                self._revoked.put((key, note["signal"]))
                self._fell.set()
            elif "stamps" in note:
                self._revoked.put((note["stamps"], note["signal"]))
                self._fell.set()
        return bool(data)

    def _terminate(self, key: uuid.UUID, number: int) -> None:
        """``revoke(terminate=True)``: end the process that runs the job, and with it the job."""
        for slot in self.board.occupied():
            if slot.has_job and slot.job == key and self._is_prefork:
                self._end_run(slot, "revoked", "revoked at the worker", number)

    def _end_run(self, slot: Occupied, why: str, text: str, number: int = signal.SIGKILL) -> None:
        # Race: the process may have another job by now.
        now = self.board.read(slot.index)
        if (now.pid, now.job, now.lease) == (slot.pid, slot.job, slot.lease):
            self.own.expect_end(slot, why, text)
            with suppress(ProcessLookupError):
                os.kill(slot.pid, number)

    def _enforce_limits(self, slots: list[Occupied]) -> None:
        """Time limits are the companion's: no event loop has to be alive for them."""
        now = time.monotonic()
        for slot in slots:
            if not slot.has_job:
                continue
            if 0 < slot.hard_at < now and not slot.is_dead:
                limit = round(slot.hard_at - slot.began, 3)
                task = self.board.text(slot).get("name")
                about = self.board.about("timed_out", job=str(slot.job), task=task)
                logger.error("the job %s ran longer than its hard time limit of %s s", slot.job, limit, extra=about)
                self._end_run(slot, "timed_out", f"TimeLimitExceeded({limit:g})")
            elif 0 < slot.soft_at < now and slot.phase == BODY:
                # Again and again: the process takes it once, and only in the body.
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGUSR1)

    def _have_replaced(self, slots: list[Occupied]) -> None:
        """While the main process waits for a broker that says nothing, it replaces nobody unless it is interrupted."""
        now = time.monotonic()
        # Race: the rescue thread frees the slots of the dead.
        self._processes |= dict.fromkeys({slot.pid for slot in slots} - self._processes.keys(), 0.0)
        for pid, ask_at in list(self._processes.items()):
            if not os.path.exists(f"/proc/{pid}"):
                del self._processes[pid]
            elif not ask_at or is_alive(pid):
                self._processes[pid] = now + REPLACED_WITHIN
            elif ask_at < now:
                self._processes[pid] = now + REPLACED_WITHIN
                with suppress(ProcessLookupError):
                    os.kill(self.handle._main, REPLACE)

    def _holds_up(self, slot: Occupied) -> bool:
        """Whether something waits behind a body that takes long."""
        return bool(slot.has_job and slot.batch and time.monotonic() - slot.began > LONG)

    def _is_overdue(self) -> bool:
        """Whether what still runs has to give up."""
        timeout, stopping_for, ending_for = conf().STOP_TIMEOUT, self.board.stopping_for, self.board.ending_for
        if timeout is not None and stopping_for is not None and stopping_for > timeout:
            return True
        return ending_for is not None and ending_for > COLD_TIMEOUT

    def _give_up(self) -> None:
        """The bodies end now, and ``settle_dead`` gives their jobs back; then the worker itself ends, willing or not.

        In a cold stop Celery's main process joins its pool in a signal handler, for as long as a process shrugs off
        its SIGTERM or waits to be read.
        """
        self.board.note_end()
        pids = {slot.pid for slot in self.board.occupied() if slot.phase != IDLE}
        if (self.board.ending_for or 0.0) > COLD_TIMEOUT:
            logger.error("the worker does not end: it is killed", extra=self.board.about("stop_forced"))
            pids.add(self.handle._main)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _guard(self) -> None:
        """A beat that hangs on a dead link would hang for hours: start again, with new connections."""
        woke = time.monotonic()
        while not self._stopping.wait(1.0):
            # Not if this very process was paused: then nothing hangs.
            was_paused, woke = time.monotonic() - woke > LAST_WAIT, time.monotonic()
            if not was_paused and time.monotonic() - self._last_look > 2 * conf().DEAD_AFTER:
                logger.error(
                    "the heartbeat hangs: the companion starts again", extra=self.board.about("companion_hangs")
                )
                os._exit(1)

    def _beat(self) -> bool:
        if not self.registered:
            self._register()
        elif not rescue.beat(self.side, self.board.node):
            # Somebody declared this node dead: under the old id it may neither claim nor settle again.
            self.board.node = uuid.uuid4()
            self._register()
            self._is_other = True
        self.board.note_beat()
        if self._is_other:
            stopping_at = None if self.board.stopping_for is None else Coalesce("stopping_at", Now())
            for alias in conf().DATABASES:
                node = Node.objects.using(alias).filter(pk=self.board.node)
                node.update(queues=self.board.queues, stopping_at=stopping_at)
            self._is_other = False
        return True

    def _admit(self) -> bool:
        instance.check_all()
        self._admitted.set()
        return True

    def _register(self) -> None:
        node_id = self.board.node
        self._admit()
        for alias in conf().DATABASES:
            Node.objects.using(alias).get_or_create(
                pk=node_id,
                defaults={
                    "hostname": socket.gethostname(),
                    "pid": self.handle._main,
                    "queues": self.board.queues,
                    "tasks": self.handle.tasks,
                    "version": __version__,
                    "pool": self.handle.pool,
                    "concurrency": self.handle.concurrency,
                },
            )
        if not rescue.beat(self.side, node_id):
            rescue.first_beat(self.side, node_id)
        self.registered = True
        logger.info("node %s is up", node_id, extra=self.board.about("node_up"))
        os.write(self.ready, REGISTERED)

    def _sign_off(self) -> None:
        if not self.registered and not self._try(self._admit):
            return
        deadline = time.monotonic() + LAST_WAIT
        while time.monotonic() < deadline and self._runs():
            select.select([], [], [], 0.02)
        if self._runs():
            # Bodies outlive their parent: nobody may run their jobs yet. Rescue waits for the beat to stand still.
            return
        if self.board.stopping_for is not None:
            self._try(self.own.hand_back_all)
        # Without a word that it stops its main process was killed.
        self._try(lambda: rescue.bury(self.board.node, by_itself=self.board.stopping_for is not None))
        for alias in conf().DATABASES:
            self._try(partial(rescue.give_back_all, alias))
        self._try(lambda: rescue.delete_beat(self.side, self.board.node))

    def _runs(self) -> bool:
        return any(slot.phase != IDLE and is_alive(slot.pid) for slot in self.board.occupied())

    # The others

    def _watch(self) -> None:
        """A beat may hang: behind a dead link, or on SQLite behind a long body. Time limits are kept all the same."""
        pause = LOOK
        while not self._stopping.wait(pause):
            slots = self.board.occupied()
            pause = LOOK if any(slot.phase != IDLE for slot in slots) else IDLE_LOOK
            if self._is_prefork:
                self._enforce_limits(slots)
                self._have_replaced(slots)
            if any(slot.is_dead or self._holds_up(slot) for slot in slots):
                self._fell.set()

    def _rescue(self) -> None:
        watch = rescue.Rescue(SideDatabase(), lambda: self.board.node)
        next_watch = 0.0
        self._admitted.wait()
        while not self._stopping.is_set():
            self._fell.clear()
            self._try(self._revoke)
            self._try(self.own.settle_dead)
            self._try(self.own.give_back_waiting)
            if time.monotonic() >= next_watch:
                next_watch = time.monotonic() + conf().HEARTBEAT
                if self.registered:
                    self._try(self.own.hand_back_orphans)
                self._try(watch.run_once)
            self._fell.wait(max(0.0, next_watch - time.monotonic()))

    def _revoke(self) -> None:
        """Cancel jobs that the worker was told to drop by remote control."""
        why = ("Revoked", "revoked at the worker")
        while not self._revoked.empty():
            what, number = self._revoked.get()
            try:
                for alias in conf().DATABASES:
                    for key in lifecycle.stamped(alias, what) if isinstance(what, dict) else [what]:
                        # Race: the run may go back to wait between the first two.
                        cancel = partial(lifecycle.cancel, key, alias, *why)
                        asked = cancel() or lifecycle.ask_to_end(key, alias, *why) or cancel()
                        if asked and isinstance(what, dict) and number is not None:
                            self._terminate(key, number)
            except Error:
                self._revoked.put((what, number))
                raise

    def _clock(self) -> None:
        tick = Clock()
        self._admitted.wait()
        while not self._stopping.is_set():
            self._try(tick.run_once)
            self._stopping.wait(conf().POLL_INTERVAL)

    def _tidy(self) -> None:
        prune, count = Prune(SideDatabase(), lambda: self.board.node), Count(lambda: self.board.node)
        next_prune = next_count = 0.0
        self._admitted.wait()
        while not self._stopping.wait(max(1.0, min(next_prune, next_count) - time.monotonic())):
            if time.monotonic() >= next_prune:
                next_prune = time.monotonic() + conf().PRUNE_INTERVAL
                self._try(lambda: prune.run_once(budget=PRUNE_BUDGET))
            if self.registered and time.monotonic() >= next_count:
                next_count = time.monotonic() + COUNT_INTERVAL
                self._try(count.run_once)

    def _try(self, action: Callable[[], Any]) -> Any:
        """Nothing that goes wrong in one tick stops the next."""
        try:
            return action()
        except NotAdopted:
            raise
        except Error as exc:
            databases.complain(exc, databases.home())
            for alias in conf().DATABASES:
                databases.drop(alias)
        except Exception:
            logger.exception("the companion goes on after an error", extra=self.board.about("companion_error"))
        return None
