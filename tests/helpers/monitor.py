"""What a monitor hears of tasks, and what ``celery inspect`` answers."""

from __future__ import annotations

import os
import threading
from collections import defaultdict

from celery import current_app

from tests.faults.worker import Worker


def name_of(worker: Worker) -> str:
    return f"{worker.directory.name}@{os.uname().nodename}"


def inspect(worker: Worker, command: str, *arguments: object):
    """What one worker answers."""
    name = name_of(worker)
    found = getattr(current_app.control.inspect([name], timeout=10, limit=1), command)(*arguments)
    return found[name]


class Receiver:
    """What a monitor hears of tasks, by their id."""

    def __init__(self) -> None:
        self.heard: dict[str, list[dict]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _hear(self, event: dict) -> None:
        if "uuid" in event:
            self.heard[event["uuid"]].append(event)

    def _run(self) -> None:
        with current_app.connection_for_read() as connection:
            self._receiver = current_app.events.Receiver(connection, handlers={"*": self._hear})
            self._receiver.capture(wakeup=False)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)

    def kinds(self, key: str) -> list[str]:
        return [event["type"] for event in self.heard[key]]


def tell(worker: Worker, command: str, *arguments: object, **options: object) -> None:
    name = name_of(worker)
    options |= {"destination": [name], "reply": True, "timeout": 10, "limit": 1}
    [answer] = getattr(current_app.control, command)(*arguments, **options)
    assert "ok" in answer[name], answer
