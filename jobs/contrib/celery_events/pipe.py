"""Celery's task events of jobs, for Flower and ``celery events``.

A process that runs a job has no connection to the broker. It writes the event into a pipe, and the worker's main
process sends it. If that does not read, because the broker is away, events are dropped: the rows hold the truth.
"""

import contextlib
import json
import os
import select
import time
from typing import Any

from celery import bootsteps, states
from celery.utils.saferepr import saferepr

from jobs.contrib.redaction.display import Shown, shown
from jobs.lifecycle.run import Run
from jobs.lifecycle.worker_state import worker_state
from jobs.models.values import safe_repr

#: Seconds between two looks for events of jobs.
FORWARD = 0.5

_reader, _writer = os.pipe()
os.set_blocking(_reader, False)
os.set_blocking(_writer, False)


def send_start(run: Run) -> None:
    """Say that a job was taken and begins."""
    request = run.request
    about = {name: request.get(name) for name in ("root_id", "parent_id", "retries", "eta", "expires")}
    about |= {"name": run.job.task, "args": request.argsrepr, "kwargs": request.kwargsrepr}
    _write("task-received", {"uuid": request.id, **about})
    # The process is the dispatcher's, as in an event of a stock task.
    _write("task-started", {"uuid": request.id})


def send_outcome(run: Run, runtime: float) -> None:
    """Say what the outcome of a run is."""
    key, seen, told = run.request.id, shown(run.job), run.told
    if run.state == states.SUCCESS:
        result = run.result if seen.is_whole else seen.value("result", run.result)
        _write("task-succeeded", {"uuid": key, "result": saferepr(result, 500), "runtime": runtime})
    elif run.state == states.RETRY:
        _write("task-retried", {"uuid": key, "exception": _text(seen, getattr(told, "exc", None))})
    elif run.state == states.FAILURE:
        _write("task-failed", {"uuid": key, "exception": _text(seen, told), "traceback": ""})
    elif run.state == states.REJECTED:
        _write("task-rejected", {"uuid": key, "requeue": False})


def _text(seen: Shown, exc: Any) -> str:
    # First blanked, then cut: a value to blank could not be recognized once it is cut.
    return str(saferepr(exc, 500)) if seen.is_whole else seen.text("error", safe_repr(exc))[:500]


def _write(kind: str, fields: dict[str, Any]) -> None:
    said = {"type": kind, "timestamp": time.time(), **fields}
    for short in ({}, {name: str(fields[name])[:200] for name in ("args", "kwargs") if name in fields}):
        line = json.dumps(said | short, ensure_ascii=False).encode(errors="replace") + b"\n"
        # Up to this size a write is atomic, even if other processes write at the same time.
        if len(line) <= select.PIPE_BUF:
            with contextlib.suppress(BlockingIOError):
                os.write(_writer, line)
            return


_rest = b""


def forward(dispatcher: Any) -> None:
    """In the worker's main process: hand what the processes wrote to Celery's dispatcher."""
    global _rest
    groups = getattr(dispatcher, "groups", None)
    # Without -E the dispatcher sends heartbeats, and drops all events of tasks.
    worker_state.wants_events = bool(dispatcher and dispatcher.enabled and (not groups or "task" in groups))
    if not worker_state.wants_events:
        return
    with contextlib.suppress(BlockingIOError):
        while data := os.read(_reader, 1 << 16):
            *lines, _rest = (_rest + data).split(b"\n")
            for line in lines:
                fields = json.loads(line)
                dispatcher.send(fields.pop("type"), **fields)


class ForwardStep(bootsteps.StartStopStep):
    """In the worker's main process, as long as it has a connection."""

    requires = ("celery.worker.consumer:Connection", "celery.worker.consumer:Events")
    #: The timer of the next look; None: no client wants events, so there are no looks.
    next_look: Any = None

    @classmethod
    def look(cls, c: Any) -> None:
        cls.next_look = None
        try:
            # There is a new dispatcher after each connection.
            forward(c.event_dispatcher)
        finally:
            if worker_state.wants_events:
                cls.next_look = c.timer.call_after(FORWARD, cls.look, (c,))

    def start(self, c: Any) -> None:
        self.look(c)

    @classmethod
    def stop(cls, c: Any) -> None:
        if cls.next_look is not None:
            c.timer.cancel(cls.next_look)
            cls.next_look = None


def enable_events(stock: Any, state: Any, **kwargs: Any) -> Any:
    """Celery's command; after it the looks for events begin."""
    answer = stock(state, **kwargs)
    if ForwardStep.next_look is None:
        ForwardStep.look(state.consumer)
    return answer
