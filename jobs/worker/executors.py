"""What runs jobs of a kind of its own in each process that claims, beside the one job that this process runs."""

from __future__ import annotations

from typing import Any, Protocol


class Executor(Protocol):
    """Made by an extension in the worker's main process, before it forks."""

    #: The tasks that it claims, and that others leave to it.
    tasks: tuple[str, ...]
    #: How many jobs it has run in this process.
    done: int

    def start(self, app: Any, hostname: str) -> None:
        """Begin to claim, in a process."""

    def retire(self) -> bool:
        """The process is to be replaced: claim nothing more. Whether nothing of it runs."""

    def wait(self) -> None:
        """The worker stops: wait until nothing of it runs."""


#: Those of this worker.
present: list[Executor] = []
