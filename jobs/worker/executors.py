"""Executors run jobs of a kind of their own in each process that claims, beside the one job that the process runs."""

from __future__ import annotations

from typing import Any, Protocol


class Executor(Protocol):
    """Made by an extension in the worker's main process, before it forks."""

    #: The tasks that it claims; all other claims of the process leave them out.
    tasks: tuple[str, ...]
    #: How many jobs it has run in this process.
    done: int

    def start(self, app: Any, hostname: str) -> None:
        """Begin to claim, in a process."""

    def retire(self) -> bool:
        """The process is to be replaced: claim nothing more. Returns whether all its jobs have ended."""

    def wait(self) -> None:
        """The worker stops: wait until all its jobs have ended."""


#: The executors of this worker.
present: list[Executor] = []
