"""Which wait of a stopping worker is a wait for its broker. What follows from it: ``tests/faults/test_deploy.py``."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
from celery.exceptions import WorkerShutdown

from jobs.contrib.broker_outages.alarm import PATIENCE, PATIENCE_LOST, TICK, Alarm, BrokerSilent, call_to_broker


def call_in(*modules: str):
    """The outermost call into kombu, asked from the last of these modules' functions, each called by the one before."""
    found = sys._getframe
    for module in reversed(modules):
        scope = {"__name__": module, "call": found}
        exec("def function():\n    return call()", scope)
        found = scope["function"]
    call = call_to_broker(found())
    return call and call.f_globals["__name__"]


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        (["celery.worker.pidbox", "kombu.messaging", "kombu.transport.redis", "redis.connection"], "kombu.messaging"),
        (["kombu.asynchronous.hub", "kombu.transport.redis", "redis.connection"], "kombu.transport.redis"),
        (["celery.worker.loops", "kombu.asynchronous.hub", "kombu.utils.eventio"], None),
        (["kombu.transport.base", "celery.apps.worker", "celery.worker.worker"], None),
        (["kombu.asynchronous.hub", "celery.events.dispatcher"], "celery.events.dispatcher"),
        (["celery.concurrency.prefork", "billiard.pool", "threading"], None),
        (["kombu.transport.base", "celery.worker.strategy", "celery.app.trace", "shop.tasks", "kombu.messaging"], None),
    ],
    ids=["step", "event", "loop", "handler", "lock", "bodies", "solo"],
)
def test_what_is_a_call_to_the_broker(modules, found):
    assert call_in(*modules) == found


@pytest.mark.parametrize(("stops_steps", "kind"), [(False, WorkerShutdown), (True, BrokerSilent)])
def test_a_call_that_does_not_return_is_broken_off(stops_steps, kind):
    scope = {"__name__": "kombu.messaging", "ask": sys._getframe}
    exec("def call():\n    return ask()", scope)
    alarm = Alarm()
    alarm._stops_steps = stops_steps
    frame = scope["call"]()
    for _ in range(PATIENCE):
        alarm._look(signal.SIGALRM, frame)
    # Another call begins anew.
    for _ in range(PATIENCE):
        alarm._look(signal.SIGALRM, scope["call"]())
    frame = scope["call"]()
    with pytest.raises(kind):
        for _ in range(PATIENCE + 1):
            alarm._look(signal.SIGALRM, frame)
    with pytest.raises(kind):
        for _ in range(PATIENCE_LOST + 1):
            alarm._look(signal.SIGALRM, frame)


def test_it_ends_with_its_worker():
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        alarm = Alarm()
        alarm.stop_steps()
        assert signal.getitimer(signal.ITIMER_REAL)[1] == TICK
        alarm.stop()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        assert not alarm._stops_steps
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_alarm_is_for_the_main_thread_and_if_nobody_else_has_it(monkeypatch):
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        Alarm().start()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raised = []
        monkeypatch.setattr(threading, "excepthook", raised.append)
        thread = threading.Thread(target=Alarm().stop_steps)
        thread.start()
        thread.join()
        assert not raised
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGALRM, before)
