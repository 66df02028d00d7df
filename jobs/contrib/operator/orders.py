"""Orders from a person to a worker, on any machine: the worker's supervisor looks for rows each second."""

import os
import signal

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.operator.store import Told, delete, read
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import KILLED, worker_state
from jobs.store.databases import SideDatabase
from jobs.worker.supervisor import here

#: To a run. The next three go to a node: claim nothing more and finish what runs, claim again, stop as by SIGTERM.
KILL = "kill"
QUIET, RESUME, STOP = "quiet", "resume", "stop"

#: Seconds for which a node looks for a run to kill that has not begun yet.
PATIENCE = 60.0


def obey(side: SideDatabase) -> None:
    """Carry out the orders to this node."""
    supervisor = here()
    # Stops come first: they need no database, and must not wait behind a kill that does.
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
    """End the run, if it is still the one that runs here. A thread cannot be killed: the fence undoes its work."""
    for slot in worker_state.occupied():
        if slot.has_job and (slot.job, slot.lease) == (order.key, order.lease):
            for alias in conf().DATABASES if slot.is_shared else ():
                # The reason that the run will report for its end.
                transitions.ask_to_end(slot.job, alias, KILLED, order.text)
            here().end_or_ask(slot, KILLED, order.text)
            return True
    return False
