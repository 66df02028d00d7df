"""Judge which nodes are dead, give back their jobs, and those that nobody runs on this one."""

import logging
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import IntegrityError
from django.db.models import Exists, OuterRef, Q

from jobs import store
from jobs.conf import celery_app, conf, logs
from jobs.conf.logs import logger
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.claims import Claimed
from jobs.lifecycle.run import report
from jobs.lifecycle.wakeups import wakeup
from jobs.lifecycle.worker_state import BODY, Occupied, dead, is_alive, start_of, worker_state
from jobs.maintenance import Seldom
from jobs.maintenance.zombies import end_backends
from jobs.models import Job, Node, State
from jobs.models.columns import ORDER
from jobs.store import databases, heartbeats, shared
from jobs.store.databases import SideDatabase

#: The pause after a look at what runs, in multiples of its length: it costs two percent of a core at the most.
RARELY = 50

VISITOR = uuid.UUID(int=1)  #: Beats for a rescuer that is no worker (``manage.py jobs rescue``).


class Rescue:
    """Watches the heartbeats of all nodes (Quartz's clustered check-in, judged by a monotonic clock).

    This process alone judges: a node is dead if its beat stood still for ``DEAD_AFTER`` while this process could write
    to the database all the time. The clocks of other machines do not count, and after an outage of the database
    everybody gets the full time again.

    Parameters:
        node: this process's own node, whose beat proves that it can write; without one it beats before each look.
    """

    def __init__(self, side: SideDatabase, node: Callable[[], uuid.UUID] = lambda: VISITOR) -> None:
        self.side, self._node = side, node
        #: The count of beats of each node, and since when it has stood still.
        self._seen: dict[uuid.UUID, tuple[int, float]] = {}
        self._own, self._last_write = -1, 0.0
        #: Those that beat and are not alive, or were declared dead in this look.
        self._strange: set[uuid.UUID] = set()
        #: Those that the databases take for alive (:func:`_unburied`), and when to ask again.
        self._named: set[uuid.UUID] = set()
        self._ask_at = 0.0
        self._seldom = Seldom(RARELY)
        #: The queues of each node that lives, and does not stop.
        self.living: dict[uuid.UUID, Collection[str]] = {}

    def run_once(self) -> dict[str, int]:
        done = {"nodes": 0, "jobs": 0}
        for node_id in self._silent():
            # Race: the burial before may have waited while nobody could write, and now all beat again.
            if heartbeats.read(self.side).get(node_id, -1) == self._seen[node_id][0]:
                done["nodes"] += bury(node_id)
                self._strange.add(node_id)
        if done["nodes"]:
            self._seldom.clear()
        done["jobs"] = databases.everywhere(lambda alias: self._seldom.take(alias, partial(rescue_all, alias)))
        # A beat of a node that is dead must miss its row, so that the node notices.
        if self._strange:
            dead = Node.objects.using(databases.home()).filter(pk__in=self._strange, dead_at__isnull=False)
            for node_id in dead.values_list("pk", flat=True):
                heartbeats.delete(self.side, node_id)
        return done

    def _silent(self) -> list[uuid.UUID]:
        if self._node() == VISITOR and not heartbeats.send(self.side, VISITOR):
            with suppress(IntegrityError):  # Another visitor was faster.
                heartbeats.first(self.side, VISITOR)
        now = time.monotonic()
        counts = heartbeats.read(self.side)
        own = counts.get(self._node(), -1)
        # This process was there between its own beats. It may have been away before the first of them.
        written = max(0, own - self._own - 1) * conf().HEARTBEAT
        if now - self._last_write - written > conf().DEAD_AFTER / 2:
            # This process was away, or nobody could write: nothing is known of the others.
            self._seen.clear()
        if own != self._own:
            self._own, self._last_write = own, now
        if now >= self._ask_at:
            # Seldom: it reads all that runs, and finds something only where a database was restored or pruned.
            self._ask_at, self._named = now + conf().DEAD_AFTER, set()
            databases.everywhere(lambda alias: self._named.update(_unburied(alias)))
        # Race: a node has its row at home before that elsewhere, and before its first beat. So home is read last.
        known = Q(dead_at=None) | Q(pk__in=self._named)
        found = Node.objects.using(databases.home()).filter(known).only("dead_at", "stopping_at", "queues")
        at_home = {row.pk: row.dead_at for row in found}
        self.living = {row.pk: row.queues for row in found if row.dead_at is None and row.stopping_at is None}
        # Home may have lost a node's row: it was pruned, or restored from a backup. A node that another database or a
        # running job names is watched like any other.
        alive = {key for key in self._named | at_home.keys() if at_home.get(key) is None}
        self._strange = counts.keys() - alive - {VISITOR}
        silent = []
        for node_id in alive:
            count = counts.get(node_id, -1)
            before, since = self._seen.get(node_id, (None, now))
            if before != count:
                self._seen[node_id] = (count, now)
            elif now - since > conf().DEAD_AFTER:
                silent.append(node_id)
        return silent


def _unburied(using: str) -> set[uuid.UUID]:
    """The nodes that a database takes for alive, beside home, and those that its running jobs name without a row."""
    nodes = Node.objects.using(using)
    running = Job.objects.using(using).filter(~Exists(nodes.filter(pk=OuterRef("node"))), state=State.RUNNING)
    found = {node_id for node_id in running.values_list("node", flat=True).distinct() if node_id is not None}
    return found if using == databases.home() else found.union(nodes.filter(dead_at=None).values_list("pk", flat=True))


def bury(node_id: uuid.UUID, *, by_itself: bool = False) -> int:
    """Declare a node dead in every job database; 1 if this call declared it. Its jobs are given back after that."""
    declared = transitions.write_death(node_id, databases.home(), by_itself)
    # A database that is away is told later: the jobs in the others need not wait for it.
    elsewhere = databases.everywhere(
        partial(transitions.write_death, node_id, signed_off=by_itself), conf().DATABASES[1:]
    )
    if declared or elsewhere:
        level, text = (logging.INFO, "signed off") if by_itself else (logging.WARNING, "is dead")
        logger.log(level, f"node {node_id} {text}", extra={"action": "node_dead", "node": str(node_id)})
    return int(declared or elsewhere > 0)


def rescue_all(using: str) -> int:
    """Give back the jobs that dead nodes were running, whoever declared these dead."""
    if using != databases.home():
        # Tell this database of the nodes that are dead at home.
        dead = Node.objects.using(databases.home()).filter(pk__in=_unburied(using), dead_at__isnull=False)
        for node_id, signed_off in dead.values_list("pk", "signed_off"):
            transitions.write_death(node_id, using, signed_off)
    runs = _runs(using, node__dead_at__isnull=False)
    # First, so that the next run does not wait for the locks of this one.
    end_backends([(key, lease) for key, lease, _ in runs], using)
    return _lose_all(runs, using, _lose("NodeLost", "the worker died"))


def _runs(using: str, **where: Any) -> list[Claimed]:
    # Mostly nothing runs at all, and that is asked quickly.
    if not store.of(using).has_running():
        return []
    rows = Job.objects.using(using).filter(state=State.RUNNING, **where)
    found = rows.order_by(*ORDER).values_list("pk", "lease", "token")
    return [(key, lease, token or 0) for key, lease, token in found]


def _lose_all(runs: list[Claimed], using: str, lose: Callable[[Job], bool]) -> int:
    """Give back all that is left of dead claims. What has not been begun counts nothing.

    Race: another rescuer looks meanwhile, or this one dies. So of each claim the row that counts is given back last: as
    long as it has rows, the one that counts is among them.
    """
    lost = claims.begun(runs)
    handed_back = {run: _finish_all([run], using, "handed_back", _HAND_BACK) for run in runs if run not in lost}
    # A row that was not begun may be locked. Then the one that was begun stays too: otherwise the next look would take
    # the other for the first, and count it as begun.
    left = {abs(run[2]) for run, is_done in handed_back.items() if not is_done and run[0] not in _reported}
    counted = [run for run in lost if abs(run[2]) not in left]
    for run in lost:
        if abs(run[2]) in left and run[0] not in _waiting:
            _waiting.add(run[0])
            text = (
                "job %s, whose process died, is given back later: somebody has locked the row of a job claimed with it"
            )
            logger.warning(text, run[0], extra={"action": "rescue_waits", "job": str(run[0])})
    return sum(handed_back.values()) + _finish_all(counted, using, "rescued", lose)


_HAND_BACK = partial(transitions.hand_back, delay=0)

#: Why a run ended whose process was ended for the sake of another one.
BESIDE = "Beside"


def _finish_all(runs: list[Claimed], using: str, action: str, transition: Callable[[Job], bool]) -> int:
    # Race: another node may give the same jobs back, and a third one may run them by now.
    return sum(_finish(key, using, action, transition, lease=lease, token=token) for key, lease, token in runs)


def _lose(kind: str, text: str) -> Callable[[Job], bool]:
    return lambda job: transitions.lose(job, _error(job, kind, text), conf().MAX_NODE_LOSSES)


def _error(job: Job, kind: str, text: str) -> dict[str, Any]:
    return transitions.error_entry(kind, text, attempt=job.lease)


_reported: set[uuid.UUID] = set()  #: The rows that cannot be given back: they stay running until somebody mends them.
_waiting: set[uuid.UUID] = set()  #: Those of which the log says that they are given back later.


def _finish(key: uuid.UUID, using: str, action: str, transition: Callable[[Job], bool], **where: Any) -> int:
    """Finish one job. A bad row never stops the others; it is logged once."""
    shared.give_way()
    found: list[Job] = []

    def finish(job: Job) -> bool:
        found.append(job)
        return transition(job)

    try:
        if not transitions.finish_running(key, using, finish, **where):
            return 0
    except Exception as exc:
        if databases.is_lost(exc, using):
            raise
        if databases.is_conflict(exc):
            # Nothing is wrong with the row: the next look gives it back.
            return 0
        fields = logs.fields(found[0]) if found else {"job": str(key)}
        level = logging.DEBUG if key in _reported else logging.ERROR
        _reported.add(key)
        extra = {**fields, "action": "rescue_failed"}
        logger.log(level, "job %s cannot be given back", key, exc_info=True, extra=extra)
        return 0
    _reported.discard(key)
    _waiting.discard(key)
    job = found[0]
    if action == "crashed":
        # Its process is gone. The finish has decided whether the body did it.
        error = job.own_error
        action = "handed_back" if error is None else "rescued" if error["type"] == "NodeLost" else action
    report(job, using, action, action.replace("_", " "), logging.WARNING)
    return 1


class OwnJobs:
    """The jobs of this very node: those whose process died, and those that no process has.

    Parameters:
        main: the process id of the worker's main process.
    """

    def __init__(self, main: int) -> None:
        self._main = main, start_of(main)
        #: The databases in which each dead slot is finished already; another may be away.
        self._finished: dict[Occupied, set[str]] = {}
        #: Of each claim that waits behind a long body the databases in which it was given back.
        self._handed_back: dict[int, set[str]] = {}
        #: For each database the jobs that no process had, and for how many beats.
        self._unseen: dict[str, dict[Claimed, int]] = {}
        self._seldom = Seldom(RARELY)
        #: The runs whose process this node has ended itself: the type of the error, and its text.
        self._ended: dict[tuple[uuid.UUID, int], tuple[str, str]] = {}

    def expect_end(self, slot: Occupied, kind: str, text: str) -> None:
        """This node ends the run's process: ``TimeLimitExceeded``, ``Revoked`` or ``Killed``."""
        # Race: several bodies of one process come to their ends together. The first reason of each counts.
        if self._ended.get((slot.job, slot.lease), (BESIDE,))[0] == BESIDE:
            self._ended[slot.job, slot.lease] = (kind, text)
        for other in worker_state.occupied():
            # The one that keeps the process from answering is no innocent.
            is_culprit = slot.is_shared and other.is_shared and other.phase == BODY
            if other.pid == slot.pid and other.has_job and other.index != slot.index and not is_culprit:
                self._ended.setdefault((other.job, other.lease), (BESIDE, ""))

    def finish_dead(self) -> int:
        """Finish the jobs whose process died. It reads memory only, as long as none did."""
        # Race: first what was announced, then the worker state. An end that is announced in between is kept.
        announced = set(self._ended)
        occupied = worker_state.occupied()
        for run in announced - {(slot.job, slot.lease) for slot in occupied}:
            self._ended.pop(run, None)
        self._finished = {slot: self._finished.get(slot, set()) for slot in dead(occupied)}
        done = databases.everywhere(self._finish_in) if self._finished else 0
        for slot, aliases in list(self._finished.items()):
            if len(aliases) == len(conf().DATABASES):
                worker_state.clear(slot)
                del self._finished[slot]
                self._ended.pop((slot.job, slot.lease), None)
        return done

    def _finish_in(self, alias: str) -> int:
        done = 0
        for slot, finished in self._finished.items():
            if alias in finished:
                continue
            begun = slot.job if slot.has_job else None
            if slot.batch:
                done += transitions.hand_back_claim(alias, worker_state.node, slot.batch, begun)
            where = {"node_id": worker_state.node, "lease": slot.lease, "token": slot.token}
            # Without a job it waited, or claimed: then nobody has what it got, and two beats give that back.
            if begun is not None:
                end_backends([(begun, slot.lease)], alias)
                done += _finish(begun, alias, "crashed", partial(self._end, slot), **where)
                if Job.objects.using(alias).filter(pk=begun, state=State.RUNNING, **where).exists():
                    # What is left of the process has locked the row: the next look finishes it.
                    continue
            finished.add(alias)
        if done:
            wakeup.send()
        return done

    def _end(self, slot: Occupied, job: Job) -> bool:
        kind, text = self._ended.get((slot.job, slot.lease), ("", ""))
        if kind == "TimeLimitExceeded":
            return transitions.fail(job, _error(job, kind, text))
        if kind in ("Revoked", "Killed"):
            return transitions.cancel_running(job, _error(job, kind, text))
        if kind == BESIDE:
            return transitions.hand_back(job, 0)
        if worker_state.stopping_for is not None:
            # A worker that stops kills its processes: not the job's fault.
            return transitions.hand_back(job, 0)
        if not is_alive(*self._main):
            # The process died with its worker.
            return _lose("NodeLost", "the worker died")(job)
        if slot.phase != BODY:
            return _lose("NodeLost", "the process died beside the body")(job)
        error = _error(job, "WorkerLostError", f"the process {slot.pid} died in this task")
        app = celery_app()
        own = getattr(app and app.tasks.get(job.task), "max_crashes", None)
        return transitions.crash(job, error, conf().MAX_CRASHES if own is None else int(own))

    def hand_back_waiting(self) -> int:
        """Give back what waits behind a long body, for whoever is free.

        Race with the process, which may end that body at this moment: see ``transitions.hand_back_claim``.
        """
        # All at once: by the time that one is given back, the next one's process may have begun another job in time.
        waiting = {slot.batch: slot.job for slot in worker_state.occupied() if slot.holds_up}
        self._handed_back = {batch: self._handed_back.get(batch, set()) for batch in waiting}
        # One by one: a claim that the database refuses keeps no other one here.
        done = sum(databases.everywhere(partial(self._hand_back_claim, *each)) for each in waiting.items())
        if done:
            wakeup.send()
        return done

    def _hand_back_claim(self, batch: int, begun: uuid.UUID, alias: str) -> int:
        if alias in self._handed_back[batch]:
            return 0
        done = transitions.hand_back_claim(alias, worker_state.node, batch, begun)
        self._handed_back[batch].add(alias)
        return done

    def hand_back_orphans(self) -> int:
        """Give back what no process has had for two beats (its end could not be written, or an answer was lost)."""
        return databases.everywhere(lambda alias: self._seldom.take(alias, partial(self._hand_back_orphans_in, alias)))

    def _hand_back_orphans_in(self, alias: str) -> int:
        # Race: first the rows, then the worker state. A row that a process claims meanwhile is not among them.
        rows = _runs(alias, node_id=worker_state.node)
        slots = worker_state.occupied()
        alive = set(slots).difference(dead(slots))
        tokens = {token for slot in alive for token in (slot.token, slot.batch)}
        before = self._unseen.get(alias, {})
        self._unseen[alias] = unseen = {row: before.get(row, 0) + 1 for row in rows if row[2] not in tokens}
        late = [run for run, beats in unseen.items() if beats > 2]
        return _lose_all(late, alias, _lose("Orphaned", "no process of the worker ran it"))

    def hand_back_all(self) -> int:
        """Give back what still ran when the worker's processes had stopped; it counts nowhere."""
        return databases.everywhere(self._hand_back_all_in)

    def _hand_back_all_in(self, alias: str) -> int:
        runs = _runs(alias, node_id=worker_state.node)
        end_backends([(key, lease) for key, lease, _ in runs], alias)
        return _finish_all(runs, alias, "handed_back", _HAND_BACK)
