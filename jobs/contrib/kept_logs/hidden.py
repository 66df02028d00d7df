"""If a task's arguments are encrypted, its lines are encrypted as a whole, because they may repeat the arguments."""

from __future__ import annotations

from typing import Any

from jobs import extensions
from jobs.models.values import decoded


def hidden(task: str, said: dict[str, Any]) -> dict[str, Any]:
    """What is stored of a run's lines."""
    if "jobs.contrib.vault" in extensions.present():
        from jobs.contrib.vault.seal import of_task
        from jobs.contrib.vault.tokens import encrypt

        return said if of_task(task) is None else encrypt(said)
    return said


def read(stored: dict[str, Any], reveals: bool) -> dict[str, Any] | None:
    """The lines as they were; None if they may not, or cannot, be read.

    Parameters:
        reveals: the reader may see encrypted values.
    """
    if "__type__" not in stored:
        return stored
    if not reveals or "jobs.contrib.vault" not in extensions.present():
        return None
    from jobs.contrib.vault.tokens import CannotDecrypt, revealed

    try:
        with revealed():
            found: dict[str, Any] = decoded(stored)
            return found
    except CannotDecrypt:
        return None
