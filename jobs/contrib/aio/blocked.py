"""A body that blocks the event loop stops all other bodies. The log names the body, and its line."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from types import FrameType
from typing import Any

from jobs.conf.logs import log, logger
from jobs.lifecycle.run import Run
from jobs.lifecycle.worker_state import worker_state

#: Seconds between two looks; and without an answer of the loop, after which it counts as blocked.
LOOK, BLOCKED = 0.25, 1.0

CURE = "await it, or call it by asyncio.to_thread()"


def watch(bodies: Any) -> None:
    """In a thread of its own: log which body blocks the loop, after 1 second, 2, 4 ..., and at the end for how long."""
    due, lasted, told = BLOCKED, 0.0, None
    while True:
        time.sleep(LOOK)
        seconds = time.monotonic() - bodies.ticked_at if bodies.running else 0.0
        if seconds >= due:
            due *= 2
            if (found := _who(bodies)) is not None:
                told = found
                _say(*found, seconds, "is blocked")
        elif seconds < BLOCKED:
            if told is not None:
                _say(*told, lasted, "was blocked")
            due, told = BLOCKED, None
        lasted = seconds


def _who(bodies: Any) -> tuple[Run | None, str] | None:
    """The run whose code the loop is in (None: it is unknown), and the line; None: the loop is in no task any more."""
    task, frame = asyncio.current_task(bodies.loop), sys._current_frames().get(bodies.thread)
    if task is None or frame is None:
        return None
    for run, awaited in bodies.running.copy().items():
        if awaited.task is task or task in awaited.children:
            return run, _line(frame, inspect.unwrap(run.task.run).__code__.co_filename)
    return None, _line(frame, "")


def _line(frame: FrameType, own: str) -> str:
    """The innermost line of the file that the body is in; else the innermost of all."""
    inner, found = frame, None
    each: FrameType | None = frame
    while each is not None and found is None:
        found = each if each.f_code.co_filename == own else None
        each = each.f_back
    here = found or inner
    return f"{here.f_code.co_filename}:{here.f_lineno} in {here.f_code.co_name}()"


def _say(run: Run | None, line: str, seconds: float, what: str) -> None:
    text = f"the event loop {what} for {seconds:.1f} s, and all async bodies of this process wait: {line}; {CURE}"
    about: dict[str, Any] = {"seconds": round(seconds, 1), "line": line}
    if run is None:
        logger.warning("%s", text, extra=worker_state.about("loop_blocked", **about))
    else:
        log(logging.WARNING, run.job, text, "loop_blocked", **about)
