"""Keeps a worker that stops from waiting for a broker that says nothing.

Celery 5.7 bounds the sockets of its broker in a cold stop only. In a warm one it waits for as long as the connection is
open, and meanwhile it does not read what the pool's processes say. A signal gets through, on any transport.
"""

import atexit
import signal
import threading
from types import FrameType

from celery.exceptions import WorkerShutdown
from celery.platforms import EX_OK

from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import worker_state

#: Seconds that one call to the broker may take, and then each call after it; seconds between two looks.
PATIENCE, PATIENCE_LOST, TICK = 5, 1, 1.0


class BrokerSilent(Exception):
    """A stopping worker no longer waits for its broker. (No ``OSError``: kombu and redis-py would try again.)"""


class Alarm:
    """Looks every second where the main thread is, and breaks off a call into kombu that does not return."""

    _call: FrameType | None = None
    _ticks, _patience = 0, PATIENCE
    _stops_steps = _is_set = False

    def start(self) -> None:
        """The worker was told to stop: its main thread may still be in the event loop."""
        is_main = threading.current_thread() is threading.main_thread()
        # If other code uses the process's alarm, leave it to that code.
        if not self._is_set and is_main and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            self._is_set = True
            signal.signal(signal.SIGALRM, self._look)
            signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
            # When the interpreter ends, it restores the signal's default action: to kill the process.
            atexit.register(self.stop)

    def stop_steps(self) -> None:
        """The event loop is over: what is broken off now is one of Celery's steps, and the next one follows."""
        self.start()
        self._stops_steps = self._is_set

    def stop(self) -> None:
        """The worker has ended; the process may go on."""
        if self._is_set:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            atexit.unregister(self.stop)
        vars(self).clear()

    def _look(self, number: int, frame: FrameType | None) -> None:
        call = call_to_broker(frame)
        self._ticks = self._ticks + 1 if call is not None and call is self._call else 0
        self._call = call
        if self._ticks < self._patience:
            return
        if self._patience == PATIENCE:
            logger.warning(
                "the broker does not answer: this worker stops without it", extra=worker_state.about("unanswered")
            )
        self._ticks, self._call, self._patience = 0, None, PATIENCE_LOST
        raise (BrokerSilent("the broker does not answer") if self._stops_steps else WorkerShutdown(EX_OK)) from None


def call_to_broker(frame: FrameType | None) -> FrameType | None:
    """The outermost call into kombu that the frame is part of; None in a body (``-P solo``) and in a signal handler.

    Race: while a worker stops, the pool's timers go on in a thread. An event that hangs there holds the lock of the
    event dispatcher, and the main thread waits for that lock.
    """
    found = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in ("celery.app.trace", "celery.apps.worker"):
            return None
        # kombu's event loop, and what it waits in, is the one call that does not have to return.
        is_loop = module.startswith(("kombu.asynchronous", "kombu.utils.eventio"))
        if module == "celery.events.dispatcher" or (module.startswith("kombu.") and not is_loop):
            found = frame
        frame = frame.f_back
    return found


alarm = Alarm()
