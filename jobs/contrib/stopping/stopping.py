"""A worker stops: nothing claims any more, the bodies end, the processes end. This keeps it from hanging.

In a warm stop ``bootsteps.NodeStep.close`` notes in the worker state that the worker stops: ``runner`` claims nothing
more. Celery's pool then joins its processes, and a step of the worker its threads. A body that does not end would
hold that up for ever.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from contextlib import suppress
from typing import Any

from celery.worker import state

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import Occupied, worker_state
from jobs.worker.supervisor import Supervisor

#: Seconds that a worker has to end by itself after it was told not to wait for its bodies any longer.
COLD_TIMEOUT = 10.0


class EndMark:
    """When the worker was told to stop without waiting for its bodies, in memory that its processes share."""

    def __init__(self) -> None:
        #: On the machine's monotonic clock; 0: it was not.
        self._at = memoryview(mmap.mmap(-1, 8)).cast("d")

    @property
    def passed(self) -> float:
        """Seconds since then; 0 if it was not."""
        return time.monotonic() - at if (at := self._at[0]) else 0.0

    def note(self) -> None:
        worker_state.note_stop()
        self._at[0] = self._at[0] or time.monotonic()

    def wipe(self) -> None:
        self._at[0] = 0.0


end_mark = EndMark()


def prepare(worker: Any) -> None:
    """Have jobs end in a soft and in a cold stop, as Celery has it with the requests that it knows."""
    end_mark.wipe()
    wait_for_soft_shutdown = worker.wait_for_soft_shutdown

    def end_soft_shutdown() -> None:
        # Celery waits only for requests that it knows; it does not know of jobs.
        worker_state.note_stop()
        timeout = worker.app.conf.worker_soft_shutdown_timeout
        if not state.active_requests and timeout and worker_state.at_work():
            # As Celery says it.
            text = f"Initiating Soft Shutdown, terminating in {timeout} seconds"
            logger.warning(text, extra=worker_state.about("soft_stop"))
            deadline = time.monotonic() + timeout
            while time.monotonic() < deadline and worker_state.at_work():
                time.sleep(0.05)
        wait_for_soft_shutdown()
        # What follows is a cold stop, which waits for its pool without a bound.
        end_mark.note()
        # As Celery does with its requests in a cold stop; the supervisor kills a process that ignores the signal.
        for slot in worker_state.at_work():
            if slot.pid != os.getpid():
                slot.signal(signal.SIGTERM)

    worker.wait_for_soft_shutdown = end_soft_shutdown


class Ending(Supervisor):
    def _look(self, slots: list[Occupied]) -> None:
        end_overdue(self.main_pid)
        super()._look(slots)


def end_overdue(main: int) -> None:
    """End the bodies when the time to stop is over (``finish_dead`` gives their jobs back), and then the worker.

    In a cold stop Celery's main process joins its pool in a signal handler, for as long as a process ignores SIGTERM or
    waits to be read. So the supervisor does this.

    Parameters:
        main: the pid of the worker's main process.
    """
    timeout, stopping_for = conf().STOP_TIMEOUT, worker_state.stopping_for
    if timeout is not None and stopping_for is not None and stopping_for > timeout:
        end_mark.note()
    elif end_mark.passed <= COLD_TIMEOUT:
        return
    for slot in worker_state.at_work():
        slot.signal(signal.SIGKILL)
    if end_mark.passed > COLD_TIMEOUT:
        logger.error("the worker does not end: it is killed", extra=worker_state.about("stop_forced"))
        with suppress(ProcessLookupError):
            os.kill(main, signal.SIGKILL)
