"""Judge which nodes are dead, and give back their jobs, and this node's jobs that no process runs."""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import IntegrityError
from django.db.models import Exists, OuterRef, Q

from jobs import extensions, store
from jobs.conf import celery_app, conf, logs
from jobs.conf.logs import logger
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.claims import Claimed
from jobs.lifecycle.run import report
from jobs.lifecycle.wakeups import wakeup
from jobs.lifecycle.worker_state import BODY, Occupied, dead, is_alive, start_of, worker_state
from jobs.maintenance import Seldom, give_way
from jobs.models import Job, Node, State
from jobs.models.columns import ORDER
from jobs.store import databases, heartbeats
from jobs.store.databases import SideDatabase

#: The pause after a look at the running jobs, in multiples of its length: that costs at most two percent of a core.
RARELY = 50

VISITOR = uuid.UUID(int=1)  #: The node id of the heartbeat of ``manage.py jobs rescue``, which is no worker.


class Rescue:
    """Watches the heartbeats of all nodes (as Quartz's clustered check-in, but judged by a monotonic clock).

    Each process judges by itself: a node is dead if its beat stood still for ``DEAD_AFTER`` while this process could
    write to the database all the time. The clocks of other machines do not count, and after an outage of the database
    every node gets the full time again.

    Parameters:
        node: this process's own node, whose beat proves that it can write; a process without one beats at each look.
    """

    #: The queues of each node that is alive, and not stopping, as far as this process knows.
    living: dict[uuid.UUID, Collection[str]] = {}

    def __init__(self, side: SideDatabase, node: Callable[[], uuid.UUID] = lambda: VISITOR) -> None:
        self.side, self._node = side, node
        #: For each node its count of beats, and since when that has stood still.
        self._seen: dict[uuid.UUID, tuple[int, float]] = {}
        self._own, self._last_write = -1, 0.0
        #: Nodes that beat although they are not alive, or were declared dead in this look.
        self._strange: set[uuid.UUID] = set()
        #: Nodes that the databases take for alive (:func:`_unburied`), and when to ask again.
        self._named: set[uuid.UUID] = set()
        self._ask_at = 0.0
        self._seldom = Seldom(RARELY)

    def run_once(self) -> dict[str, int]:
        done = {"nodes": 0, "jobs": 0}
        for node_id in self._silent():
            # Race: the previous burial may have waited while no process could write, and by now all nodes beat again.
            if heartbeats.read(self.side).get(node_id, -1) == self._seen[node_id][0]:
                done["nodes"] += bury(node_id)
                self._strange.add(node_id)
        if done["nodes"]:
            self._seldom.clear()
        done["jobs"] = databases.everywhere(lambda alias: self._seldom.take(alias, partial(rescue_all, alias)))
        # A dead node's next beat must find no row, so that the node notices that it is dead.
        if self._strange:
            dead = Node.objects.using(databases.home()).filter(pk__in=self._strange, dead_at__isnull=False)
            for node_id in dead.values_list("pk", flat=True):
                heartbeats.delete(self.side, node_id)
        return done

    def _silent(self) -> list[uuid.UUID]:
        if self._node() == VISITOR and not heartbeats.send(self.side, VISITOR):
            with suppress(IntegrityError):  # Another visitor inserted it first.
                heartbeats.first(self.side, VISITOR)
        now = time.monotonic()
        counts = heartbeats.read(self.side)
        own = counts.get(self._node(), -1)
        # This process was running between its own beats. It may have been away before the first of them.
        written = max(0, own - self._own - 1) * conf().HEARTBEAT
        if now - self._last_write - written > conf().DEAD_AFTER / 2:
            # This process was away, or no process could write: nothing is known about other nodes.
            self._seen.clear()
        if own != self._own:
            self._own, self._last_write = own, now
        if now >= self._ask_at:
            # Done seldom: it reads all running jobs, and finds a node only if a database was restored or pruned.
            self._ask_at, self._named = now + conf().DEAD_AFTER, set()
            databases.everywhere(lambda alias: self._named.update(_unburied(alias)))
        # Race: a node writes its row at home before its rows elsewhere and its first beat. So home is read last.
        known = Q(dead_at=None) | Q(pk__in=self._named)
        found = Node.objects.using(databases.home()).filter(known).only("dead_at", "stopping_at", "queues")
        at_home = {row.pk: row.dead_at for row in found}
        Rescue.living = {row.pk: row.queues for row in found if row.dead_at is None and row.stopping_at is None}
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
    """The nodes that a database other than home takes for alive, and nodes without a row that its running jobs name."""
    nodes = Node.objects.using(using)
    running = Job.objects.using(using).filter(~Exists(nodes.filter(pk=OuterRef("node"))), state=State.RUNNING)
    found = {node_id for node_id in running.values_list("node", flat=True).distinct() if node_id is not None}
    return found if using == databases.home() else found.union(nodes.filter(dead_at=None).values_list("pk", flat=True))


def bury(node_id: uuid.UUID, *, by_itself: bool = False) -> int:
    """Declare a node dead in every job database; 1 if this call declared it. Its jobs are given back after that."""
    declared = transitions.write_death(node_id, databases.home(), by_itself)
    # A database that is away is told later: jobs in other databases need not wait for it.
    elsewhere = databases.everywhere(
        partial(transitions.write_death, node_id, signed_off=by_itself), conf().DATABASES[1:]
    )
    if declared or elsewhere:
        level, text = (logging.INFO, "signed off") if by_itself else (logging.WARNING, "is dead")
        logger.log(level, f"node {node_id} {text}", extra={"action": "node_dead", "node": str(node_id)})
    return int(declared or elsewhere > 0)


def rescue_all(using: str) -> int:
    """Give back the jobs that dead nodes were running, whichever process declared those dead."""
    if using != databases.home():
        # Tell this database which nodes are dead at home.
        dead = Node.objects.using(databases.home()).filter(pk__in=_unburied(using), dead_at__isnull=False)
        for node_id, signed_off in dead.values_list("pk", "signed_off"):
            transitions.write_death(node_id, using, signed_off)
    runs = _runs(using, node__dead_at__isnull=False)
    # First end the sessions, so that the next run does not wait for the locks of the dead one.
    extensions.instead(end_sessions)([(key, lease) for key, lease, _ in runs], using)
    return _lose_all(runs, using, _lose("NodeLost", "the worker died"))


def end_sessions(runs: Sequence[tuple[uuid.UUID, int]], using: str) -> None:
    """Runs (job and lease) are known to be over; the job may have a new run by now.

    An extension ends what they left in the database's server, and so their locks.
    """


def _runs(using: str, **where: Any) -> list[Claimed]:
    # Mostly nothing runs, and a quick query shows that.
    if not store.of(using).has_running():
        return []
    rows = Job.objects.using(using).filter(state=State.RUNNING, **where)
    found = rows.order_by(*ORDER).values_list("pk", "lease", "token")
    return [(key, lease, token or 0) for key, lease, token in found]


def _lose_all(runs: list[Claimed], using: str, lose: Callable[[Job], bool]) -> int:
    """Give back all jobs left of dead claims. For jobs that have not begun it counts as no loss.

    Race: another rescuer looks meanwhile, or this one dies. So in each claim the job that counts is given back last: as
    long as any of the claim's rows are left, that job's row is among them.
    """
    lost = claims.begun(runs)
    handed_back = {run: _finish_all([run], using, "handed_back", _HAND_BACK) for run in runs if run not in lost}
    # The row of a job that has not begun may be locked. Then the begun one stays too: otherwise the next look would
    # take the locked row for the first of its claim, and count it as begun.
    left = {abs(run[2]) for run, is_done in handed_back.items() if not is_done and run[0] not in _reported}
    counted = [run for run in lost if abs(run[2]) not in left]
    for run in lost:
        if abs(run[2]) in left and run[0] not in _waiting:
            _waiting.add(run[0])
            text = (
                "job %s, whose process died, is given back later: another transaction has locked the row of a job "
                "claimed with it"
            )
            logger.warning(text, run[0], extra={"action": "rescue_waits", "job": str(run[0])})
    return sum(handed_back.values()) + _finish_all(counted, using, "rescued", lose)


_HAND_BACK = partial(transitions.hand_back, delay=0)

#: The reason of a run whose process was ended because of another run in it.
BESIDE = "Beside"


def _finish_all(runs: list[Claimed], using: str, action: str, transition: Callable[[Job], bool]) -> int:
    # Race: another node may have given the same jobs back, and a third node may run them by now.
    return sum(_finish(key, using, action, transition, lease=lease, token=token) for key, lease, token in runs)


def _lose(kind: str, text: str) -> Callable[[Job], bool]:
    return lambda job: transitions.lose(job, _error(job, kind, text), conf().MAX_NODE_LOSSES)


def _error(job: Job, kind: str, text: str) -> dict[str, Any]:
    return transitions.error_entry(kind, text, attempt=job.lease)


_reported: set[uuid.UUID] = set()  #: Rows that cannot be given back: they stay running until a person repairs them.
_waiting: set[uuid.UUID] = set()  #: Jobs for which it was logged that they are given back later.


def _finish(key: uuid.UUID, using: str, action: str, transition: Callable[[Job], bool], **where: Any) -> int:
    """Finish one job. A bad row does not stop the rest; it is logged once as an error."""
    extensions.instead(give_way)()
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
            # Nothing is wrong with the row: the next look will give it back.
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
        # Its process is gone. ``transition`` has decided whether the body was the cause.
        error = job.own_error
        action = "handed_back" if error is None else "rescued" if error["type"] == "NodeLost" else action
    report(job, using, action, action.replace("_", " "), logging.WARNING)
    return 1


class OwnJobs:
    """The jobs of this node itself: jobs whose process died, and jobs that no process has.

    Parameters:
        main: the process id of the worker's main process.
    """

    def __init__(self, main: int) -> None:
        self._main = main, start_of(main)
        #: For each dead slot, the databases in which its jobs are finished already; other databases may be away.
        self._finished: dict[Occupied, set[str]] = {}
        #: For each claim that waits behind a long body, the databases in which it was given back.
        self._handed_back: dict[int, set[str]] = {}
        #: For each database, the jobs that no process has had, and for how many beats.
        self._unseen: dict[str, dict[Claimed, int]] = {}
        self._seldom = Seldom(RARELY)
        #: The runs whose process this node itself has ended: the type of the error, and its text.
        self._ended: dict[tuple[uuid.UUID, int], tuple[str, str]] = {}

    def expect_end(self, slot: Occupied, kind: str, text: str) -> None:
        """This node is about to end the run's process, for ``TimeLimitExceeded``, ``Revoked`` or ``Killed``."""
        # Race: several runs of one process are to be ended at the same time. For each run the first reason counts.
        if self._ended.get((slot.job, slot.lease), (BESIDE,))[0] == BESIDE:
            self._ended[slot.job, slot.lease] = (kind, text)
        for other in worker_state.occupied():
            # A body that keeps the shared process from answering is a cause itself: it is not let off.
            is_culprit = slot.is_shared and other.is_shared and other.phase == BODY
            if other.pid == slot.pid and other.has_job and other.index != slot.index and not is_culprit:
                self._ended.setdefault((other.job, other.lease), (BESIDE, ""))

    def finish_dead(self) -> int:
        """Finish the jobs whose process died. If no process died, it only reads memory."""
        # Race: read the announced ends first, then the worker state. An end that is announced in between is kept.
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
            # Without a job the process was waiting or claiming. What it claimed has no process: two beats give it back.
            if begun is not None:
                extensions.instead(end_sessions)([(begun, slot.lease)], alias)
                done += _finish(begun, alias, "crashed", partial(self._end, slot), **where)
                if Job.objects.using(alias).filter(pk=begun, state=State.RUNNING, **where).exists():
                    # A leftover of the process (its session) still has the row locked: the next look finishes the job.
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
            # A worker that stops kills its processes: it is not the job's fault.
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
        """Give back the claimed jobs that wait behind a long body, for any free process.

        Race: the process may end that body at this moment. See ``transitions.hand_back_claim``.
        """
        # Read all slots at once: while one claim is given back, the process of the next may already begin another job.
        waiting = {slot.batch: slot.job for slot in worker_state.occupied() if slot.holds_up}
        self._handed_back = {batch: self._handed_back.get(batch, set()) for batch in waiting}
        # One by one: if the database refuses one claim, the rest are still given back.
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
        """Give back jobs that no process has had for two beats (an end could not be written, or an answer was lost)."""
        return databases.everywhere(lambda alias: self._seldom.take(alias, partial(self._hand_back_orphans_in, alias)))

    def _hand_back_orphans_in(self, alias: str) -> int:
        # Race: read the rows first, then the worker state. A row that a process claims in between is not among them.
        rows = _runs(alias, node_id=worker_state.node)
        slots = worker_state.occupied()
        alive = set(slots).difference(dead(slots))
        tokens = {token for slot in alive for token in (slot.token, slot.batch)}
        before = self._unseen.get(alias, {})
        self._unseen[alias] = unseen = {row: before.get(row, 0) + 1 for row in rows if row[2] not in tokens}
        late = [run for run, beats in unseen.items() if beats > 2]
        return _lose_all(late, alias, _lose("Orphaned", "no process of the worker ran it"))

    def hand_back_all(self) -> int:
        """Give back the jobs that still ran when the worker's processes had stopped; it does not count as a loss."""
        return databases.everywhere(self._hand_back_all_in)

    def _hand_back_all_in(self, alias: str) -> int:
        runs = _runs(alias, node_id=worker_state.node)
        extensions.instead(end_sessions)([(key, lease) for key, lease, _ in runs], alias)
        return _finish_all(runs, alias, "handed_back", _HAND_BACK)
