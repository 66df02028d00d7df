"""A worker stops: nothing claims any more, the bodies end, the processes end. This keeps it from hanging.

In a warm stop ``bootsteps.NodeStep.close`` notes in the worker state that the worker stops: ``runner`` claims nothing
more. Celery's pool then joins its processes, and ``NodeStep.stop`` the threads. A body that does not end would hold
that up for ever.
"""

import os
import signal
from contextlib import suppress

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import worker_state

#: Seconds that a worker has to end by itself after it was told not to wait for its bodies any longer.
COLD_TIMEOUT = 10.0


def end_overdue(main: int) -> None:
    """End the bodies when the time to stop is over (``finish_dead`` gives their jobs back), and then the worker.

    In a cold stop Celery's main process joins its pool in a signal handler, for as long as a process ignores SIGTERM or
    waits to be read. So the supervisor does this.

    Parameters:
        main: the pid of the worker's main process.
    """
    timeout, stopping_for = conf().STOP_TIMEOUT, worker_state.stopping_for
    if timeout is not None and stopping_for is not None and stopping_for > timeout:
        worker_state.note_end()
    elif (worker_state.ending_for or 0.0) <= COLD_TIMEOUT:
        return
    for slot in worker_state.at_work():
        slot.signal(signal.SIGKILL)
    if (worker_state.ending_for or 0.0) > COLD_TIMEOUT:
        logger.error("the worker does not end: it is killed", extra=worker_state.about("stop_forced"))
        with suppress(ProcessLookupError):
            os.kill(main, signal.SIGKILL)
