"""Delete what ended long ago, in batches."""

from __future__ import annotations

import logging
import time
from functools import partial

from django.db.models import Exists, OuterRef

from jobs import databases, history, idempotency, lifecycle, lockstores
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.models import Job, Node, State
from jobs.transport import prune_replies

logger = logging.getLogger("jobs")

#: Seconds for which a dead node is kept, for people to read.
NODE_RETENTION = 7 * 86400.0


#: Seconds between two looks at all of history. In between only what grew old meanwhile is looked at: most of what is
#: older is kept for its marker, and would be read again every minute.
FULL_LOOK = 3600.0


class Prune:
    def __init__(self, side: SideDatabase) -> None:
        self.side = side
        #: For each database and kind: how old the jobs were that the last look came to, and when it was a full one.
        self._looked: dict[tuple[str, tuple[State, ...]], tuple[float, float]] = {}

    def run_once(self, budget: float | None = None) -> dict[str, int]:
        """Delete batch after batch; stop after ``budget`` seconds, and go on the next time."""
        done = {"jobs": 0, "markers": 0, "nodes": 0, "messages": 0}
        deadline = None if budget is None else time.monotonic() + budget
        for alias in conf().DATABASES:
            databases.guarded(alias, partial(self._run, alias, deadline, done))
        done["messages"] += prune_replies(self.side)
        lockstores.prune(self.side)
        if done["jobs"]:
            logger.info("pruned %s jobs", done["jobs"], extra={"action": "pruned", "count": done["jobs"]})
        return done

    def _run(self, using: str, deadline: float | None, done: dict[str, int]) -> None:
        while deadline is None or time.monotonic() < deadline:
            # Before the jobs, which are kept as long as their markers.
            deleted = idempotency.delete_expired(using, conf().BATCH)
            done["markers"] += deleted
            if not deleted:
                break
        for states, age in _kept():
            began = time.monotonic()
            last, full = self._looked.get((using, states), (None, began))
            is_full = last is None or began - full > FULL_LOOK
            while age is not None and (deadline is None or time.monotonic() < deadline):
                # A minute more, for transactions that were open at the last look.
                window = None if is_full or last is None else age + began - last + 60.0
                deleted = history.delete_ended(using, states, age, conf().BATCH, window)
                done["jobs"] += deleted
                if not deleted:
                    self._looked[using, states] = (began, began if is_full else full)
                    break
        running = Job.objects.using(using).filter(state=State.RUNNING, node=OuterRef("pk"))
        old = Node.objects.using(using).filter(~Exists(running), dead_at__lt=lifecycle.now_plus(-NODE_RETENTION))
        done["nodes"] += old._raw_delete(using)

    def count(self) -> dict[str, int]:
        """What ``run_once`` would delete; a job that only an expired marker keeps is not counted yet."""
        return {
            "jobs": sum(
                history.ended(alias, states, age).count()
                for alias in conf().DATABASES
                for states, age in _kept()
                if age is not None
            ),
            "markers": sum(idempotency.expired(alias).count() for alias in conf().DATABASES),
        }


def _kept() -> list[tuple[tuple[State, ...], float | None]]:
    settings = conf()
    return [((State.SUCCEEDED, State.CANCELLED), settings.RETENTION), ((State.FAILED,), settings.RETENTION_FAILED)]
