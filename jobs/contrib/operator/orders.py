"""What a person tells a worker, on whatever machine it is: rows that a thread of its supervisor reads within a second.

They are written beside everybody's transactions. On SQLite the body that is to be killed holds the write lock of the
main file.
"""

import os
import signal
import uuid
from typing import NamedTuple

from django.db import connections
from django.db.models.constants import OnConflict

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import KILLED, worker_state
from jobs.models.values import scrub
from jobs.store import databases
from jobs.store.databases import SideDatabase
from jobs.worker.supervisor import here

#: To a run; the others to a node: claim nothing more and finish what runs, claim again, stop as by SIGTERM.
KILL = "kill"
QUIET, RESUME, STOP = "quiet", "resume", "stop"

#: Seconds for which a node looks for a run that it is to kill, and has not begun yet; and until others forget an order.
PATIENCE, FORGOTTEN = 60.0, 3600.0

_COLUMNS = ["id", "node", "what", "lease", "text", "at"]


class Told(NamedTuple):
    #: Of the job, or of the node itself.
    key: uuid.UUID
    what: str
    lease: int | None
    text: str
    #: Seconds.
    age: float


def give(node: uuid.UUID, what: str, text: str, job: uuid.UUID | None = None, lease: int | None = None) -> None:
    """Tell a node something. Of several words about itself the last one counts.

    Parameters:
        text: what, by whom, and why, in words.
        job, lease: the run that is to be killed.
    """
    suffix = connections[databases.home()].ops.on_conflict_suffix_sql(_COLUMNS, OnConflict.UPDATE, _COLUMNS[1:], ["id"])
    sql = f"INSERT INTO jobs_order ({', '.join(_COLUMNS)}) VALUES (%s, %s, %s, %s, %s, {{now}}) {suffix}"
    with databases.side() as side:
        side.execute(sql, (job or node).hex, node.hex, what, lease, scrub(text, 4000))


def read(side: SideDatabase, node: uuid.UUID) -> list[Told]:
    found = side.execute("SELECT id, what, lease, text, {now} - at FROM jobs_order WHERE node = %s", node.hex)
    return [Told(uuid.UUID(str(key)), *rest) for key, *rest in found]


def delete(side: SideDatabase, order: Told) -> None:
    """Race: somebody kills a later run of the job at this moment, perhaps on another node."""
    sql = "DELETE FROM jobs_order WHERE id = %s AND what = %s AND COALESCE(lease, 0) = %s"
    side.execute(sql, order.key.hex, order.what, order.lease or 0)


def prune(side: SideDatabase) -> None:
    """Forget what was told to nodes that died before they read it."""
    side.execute("DELETE FROM jobs_order WHERE at < {now} - %s", FORGOTTEN)


def obey(side: SideDatabase) -> None:
    """Do what people told this node."""
    supervisor = here()
    # A stop needs no database: no kill that waits for one keeps it up.
    for order in sorted(read(side, worker_state.node), key=lambda order: order.what != STOP):
        is_done = True
        if order.what == KILL:
            is_done = _kill(order)
        elif order.what == STOP:
            os.kill(supervisor.main_pid, signal.SIGTERM)
        else:
            worker_state.is_quiet = order.what == QUIET
            supervisor.say()
        if is_done:
            logger.warning("%s", order.text, extra=worker_state.about("told", order=order.what, job=str(order.key)))
        if is_done or order.age > PATIENCE:
            delete(side, order)


def _kill(order: Told) -> bool:
    """End the run, if it is here and nowhere else by now. A thread cannot be killed: the fence undoes its work."""
    for slot in worker_state.occupied():
        if slot.has_job and (slot.job, slot.lease) == (order.key, order.lease):
            for alias in conf().DATABASES if slot.is_shared else ():
                # What the run says of its end.
                transitions.ask_to_end(slot.job, alias, KILLED, order.text)
            here().end_or_ask(slot, KILLED, order.text)
            return True
    return False
