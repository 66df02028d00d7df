"""Give back the jobs of dead nodes, and those that nobody runs on this one."""

from __future__ import annotations

import logging
import time
import uuid

from celery import current_app
from django.db import Error

from jobs import lifecycle
from jobs.board import Board, Occupied, is_alive
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.models import Job, Node, State

logger = logging.getLogger("jobs")


class Rescue:
    """Watches the heartbeats of all nodes (Quartz's clustered check-in, judged by a monotonic clock).

    Death is judged by this process alone: a node is dead if its beat stood still for ``DEAD_AFTER`` while
    this process reached the database all the time. Clocks of other machines play no part, and after an
    outage of the database everybody gets the full time again.
    """

    def __init__(self, side: SideDatabase) -> None:
        self.side = side
        self._seen: dict[uuid.UUID, tuple[int, float]] = {}
        self._last_look = 0.0

    def run_once(self) -> dict[str, int]:
        done = {"nodes": 0, "jobs": 0}
        for node_id in self._silent():
            done["nodes"] += bury(node_id)
        for alias in conf().DATABASES:
            # Also the jobs of nodes that somebody else buried, and could not finish.
            dead = Job.objects.using(alias).filter(state=State.RUNNING, node__dead_at__isnull=False)
            for node_id in set(dead.values_list("node_id", flat=True)):
                done["jobs"] += give_back(node_id, alias)
        self._forget_beats()
        return done

    def _silent(self) -> list[uuid.UUID]:
        now = time.monotonic()
        beats = read_beats(self.side)
        if now - self._last_look > conf().DEAD_AFTER / 2:
            # We were away ourselves, and cannot know what was written meanwhile.
            self._seen.clear()
        self._last_look = now
        alive = set(Node.objects.using(conf().DATABASES[0]).filter(dead_at=None).values_list("pk", flat=True))
        silent = []
        for node_id in alive:
            count = beats.get(node_id, -1)
            seen = self._seen.get(node_id)
            if seen is None or seen[0] != count:
                self._seen[node_id] = (count, now)
            elif now - seen[1] > conf().DEAD_AFTER:
                silent.append(node_id)
        return silent

    def _forget_beats(self) -> None:
        """A beat of a node that is dead must miss its row, so that the node notices."""
        beats = read_beats(self.side)
        if not beats:
            return
        dead = Node.objects.using(conf().DATABASES[0]).filter(pk__in=beats, dead_at__isnull=False)
        for node_id in dead.values_list("pk", flat=True):
            delete_beat(self.side, node_id)


def bury(node_id: uuid.UUID, *, by_itself: bool = False) -> int:
    """Declare a node dead in every job database; 1 if this call declared it. Its jobs are given back after that."""
    aliases = conf().DATABASES
    declared = [lifecycle.bury(node_id, alias) for alias in aliases]
    if any(declared):
        level, text = (logging.INFO, "signed off") if by_itself else (logging.WARNING, "is dead")
        logger.log(level, f"node {node_id} {text}", extra={"action": "node_dead", "node": str(node_id)})
    return int(any(declared))


def give_back(node_id: uuid.UUID, using: str) -> int:
    """The jobs that a dead node was running; a row that a zombie has locked is left for the next time."""
    done = 0
    for job in lifecycle.running(using, node_id=node_id):
        error = lifecycle.error_entry("NodeLost", f"the worker {node_id} died", attempt=job.lease)
        done += _each(job, "rescued", lambda job=job, error=error: lifecycle.lose(job, error, conf().MAX_NODE_LOSSES))
    return done


def _each(job: Job, action: str, transition: object) -> int:
    """One bad row never stops the others."""
    try:
        changed = bool(transition())  # type: ignore[operator]
    except Error:
        logger.exception("job %s cannot be given back", job.pk, extra={"action": "rescue_failed", "job": str(job.pk)})
        return 0
    if changed:
        fields = {"action": action, "job": str(job.pk), "task": job.task, "node": str(job.node_id), "lease": job.lease}
        logger.warning("%s[%s] %s", job.task, job.pk, action, extra=fields)
    return int(changed)


class OwnJobs:
    """The jobs of this very node: those whose process died, and those that no process runs."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._unseen: dict[tuple[uuid.UUID, int], int] = {}
        #: Jobs that Celery is ending by their hard time limit: the limit, and when we were told.
        self._timed_out: dict[uuid.UUID, tuple[float, float]] = {}
        #: Set when the worker was told to stop at once: its children do not die by their own fault.
        self.is_stopping = False

    def time_out(self, job_id: uuid.UUID, limit: float) -> None:
        """The worker ends this job's process because of its hard time limit, in seconds."""
        now = time.monotonic()
        self._timed_out = {key: value for key, value in self._timed_out.items() if now - value[1] < 60}
        self._timed_out[job_id] = (limit, now)

    def settle_dead(self) -> int:
        """Settle the jobs of processes that died in their body. Memory only, as long as none did."""
        done = 0
        for slot in self.board.occupied():
            if not is_alive(slot.pid):
                done += sum(self._settle(slot, alias) for alias in conf().DATABASES)
                self.board.clear(slot)
        return done

    def _settle(self, slot: Occupied, using: str) -> int:
        done = 0
        for job in lifecycle.running(using, pk=slot.job, node_id=self.board.node):
            if slot.lease and job.lease != slot.lease:
                continue
            if job.pk in self._timed_out:
                limit, _ = self._timed_out.pop(job.pk)
                error = lifecycle.error_entry("TimeLimitExceeded", f"TimeLimitExceeded({limit})", attempt=job.lease)
                done += _each(job, "failed", lambda job=job, error=error: lifecycle.fail(job, error))
            elif self.is_stopping:
                done += _each(job, "handed_back", lambda job=job: lifecycle.hand_back(job, 0))
            else:
                error = lifecycle.error_entry(
                    "WorkerLostError", f"the process {slot.pid} died in this task", attempt=job.lease
                )
                limit = max_crashes(job.task)
                done += _each(
                    job, "crashed", lambda job=job, error=error, limit=limit: lifecycle.crash(job, error, limit)
                )
        return done

    def hand_back_orphans(self) -> int:
        """Rows that run here, and in no process for two beats (a settle that failed, an answer that was lost)."""
        here = {slot.job for slot in self.board.occupied()}
        unseen: dict[tuple[uuid.UUID, int], int] = {}
        done = 0
        for alias in conf().DATABASES:
            rows = Job.objects.using(alias).filter(state=State.RUNNING, node_id=self.board.node)
            for job_id, lease in rows.exclude(pk__in=here).values_list("pk", "lease"):
                beats = self._unseen.get((job_id, lease), 0) + 1
                if beats < 3:
                    unseen[job_id, lease] = beats
                    continue
                for job in lifecycle.running(alias, pk=job_id, lease=lease):
                    error = lifecycle.error_entry("Orphaned", "no process of the worker ran it", attempt=lease)
                    done += _each(
                        job, "rescued", lambda job=job, error=error: lifecycle.lose(job, error, conf().MAX_NODE_LOSSES)
                    )
        self._unseen = unseen
        return done

    def hand_back_all(self) -> int:
        """The worker stops: what it still runs goes back, and counts nowhere."""
        return sum(
            _each(job, "handed_back", lambda job=job: lifecycle.hand_back(job, 0))
            for alias in conf().DATABASES
            for job in lifecycle.running(alias, node_id=self.board.node)
        )


def max_crashes(task: str) -> int:
    own = getattr(current_app.tasks.get(task), "max_crashes", None)
    return conf().MAX_CRASHES if own is None else int(own)


# Beats


def read_beats(side: SideDatabase) -> dict[uuid.UUID, int]:
    with side.cursor() as cursor:
        cursor.execute("SELECT node, count FROM jobs_beat")
        return {uuid.UUID(str(node)): count for node, count in cursor.fetchall()}


def first_beat(side: SideDatabase, node_id: uuid.UUID) -> None:
    with side.cursor() as cursor:
        cursor.execute("INSERT INTO jobs_beat (node, count) VALUES (%s, 0)", [_key(side, node_id)])


def beat(side: SideDatabase, node_id: uuid.UUID) -> bool:
    """Prove to be alive; False: this node was declared dead and has to take a new id."""
    with side.cursor() as cursor:
        cursor.execute("UPDATE jobs_beat SET count = count + 1 WHERE node = %s", [_key(side, node_id)])
        return bool(cursor.rowcount == 1)


def delete_beat(side: SideDatabase, node_id: uuid.UUID) -> None:
    with side.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_beat WHERE node = %s", [_key(side, node_id)])


def _key(side: SideDatabase, node_id: uuid.UUID) -> object:
    return node_id if side.vendor == "postgresql" else node_id.hex
