"""Delete what ended long ago, in batches."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable
from functools import partial

from django.db.models import Exists, OuterRef

from jobs import databases, history, idempotency, lifecycle, lockstores
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.maintenance import is_eldest
from jobs.models import Job, Node, State
from jobs.transport import prune_replies

logger = logging.getLogger("jobs")

#: Seconds for which a dead node is kept, for people to read.
NODE_RETENTION = 7 * 86400.0

#: Seconds between the beginnings of two walks through all of history. In between only what grew old meanwhile is looked
#: at: most of what is older is kept for its marker.
FULL_WALK = 3600.0


class Prune:
    """The sibling of rescue that deletes. Of several workers the oldest does it."""

    def __init__(self, side: SideDatabase, node: Callable[[], uuid.UUID] | None = None) -> None:
        self.side = side
        #: This process's node; None: no worker, so somebody wants it done.
        self._node = node
        #: For each database: how far the walk has come, and when it began.
        self._walks: dict[str, tuple[history.Place | None, float]] = {}

    def run_once(self, budget: float = math.inf) -> dict[str, int]:
        """Delete batch after batch; stop after ``budget`` seconds, and go on there the next time."""
        done = {"jobs": 0, "markers": 0, "nodes": 0, "messages": 0}
        for alias in conf().DATABASES:
            databases.guarded(alias, partial(self._run, alias, budget, done))
        if is_eldest(self._node, databases.home()):
            done["messages"] += prune_replies(self.side)
            lockstores.prune(self.side)
        if done["jobs"]:
            logger.info("pruned %s jobs", done["jobs"], extra={"action": "pruned", "count": done["jobs"]})
        return done

    def _run(self, using: str, budget: float, done: dict[str, int]) -> None:
        if not is_eldest(self._node, using):
            return
        began = time.monotonic()
        # Before the jobs, which are kept as long as their markers; they have the other half of the time.
        while time.monotonic() < began + budget / 2 and (count := idempotency.delete_expired(using, conf().BATCH)):
            done["markers"] += count
        while time.monotonic() < began + budget and (deleted := self._step(using)) is not None:
            done["jobs"] += deleted
        running = Job.objects.using(using).filter(state=State.RUNNING, node=OuterRef("pk"))
        old = Node.objects.using(using).filter(~Exists(running), dead_at__lt=lifecycle.now_plus(-NODE_RETENTION))
        done["nodes"] += old._raw_delete(using)

    def _step(self, using: str) -> int | None:
        """How many of the next jobs were deleted; None at the end of history."""
        now = time.monotonic()
        place, began = self._walks.get(using, (None, now))
        found = list(history.walk(using, place, conf().BATCH).values_list("pk", "place", "is_over"))
        if not found:
            # At the end it waits for what grows old, until it is time for a new walk.
            self._walks[using] = (None, now) if now - began > FULL_WALK else (place, began)
            return None
        keys = [key for key, _, is_over in found if is_over]
        deleted = history.delete_old(keys, using) if keys else 0
        key, at, _ = found[-1]
        self._walks[using] = (at, key), began
        return deleted

    def count(self) -> dict[str, int]:
        """What ``run_once`` would delete; a job that only an expired marker keeps is not counted yet."""
        using = conf().DATABASES
        return {
            "jobs": sum(Job.objects.using(alias).filter(history.over(alias)).count() for alias in using),
            "markers": sum(idempotency.expired(alias).count() for alias in using),
        }
