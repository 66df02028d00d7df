"""Which wait of a stopping worker is a wait for its broker. What follows from it: ``tests/faults/test_deploy.py``."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from jobs.alarm import Alarm, _call_to_broker


def call_in(*modules: str):
    """The outermost call into kombu, asked from the last of these modules' functions, each called by the one before."""
    found = sys._getframe
    for module in reversed(modules):
        scope = {"__name__": module, "call": found}
        exec("def function():\n    return call()", scope)
        found = scope["function"]
    call = _call_to_broker(found())
    return call and call.f_globals["__name__"]


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        (["celery.worker.pidbox", "kombu.messaging", "kombu.transport.redis", "redis.connection"], "kombu.messaging"),
        (["kombu.asynchronous.hub", "kombu.transport.redis", "redis.connection"], "kombu.transport.redis"),
        (["celery.worker.loops", "kombu.asynchronous.hub", "celery.worker.worker"], None),
        (["celery.concurrency.prefork", "billiard.pool", "threading"], None),
        (["kombu.transport.base", "celery.worker.strategy", "celery.app.trace", "shop.tasks", "kombu.messaging"], None),
    ],
    ids=["step", "event", "loop", "bodies", "solo"],
)
def test_what_is_a_call_to_the_broker(modules, found):
    assert call_in(*modules) == found


def test_the_alarm_is_for_the_main_thread_and_if_nobody_else_has_it():
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        Alarm().start()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        thread = threading.Thread(target=Alarm().stop_steps)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGALRM, before)
