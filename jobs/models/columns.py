"""Which columns of a job's row the parts of the program read and write, and the order of the claim.

A column that is in none of these lists (``result``, ``cursor``, ``held``, ``waits_for``, slots) is written by name.
"""

from __future__ import annotations

from enum import Flag, auto
from functools import cache
from operator import attrgetter

#: The order in which a queue's jobs are claimed: the smallest rank first. The indexes of waiting jobs have it.
ORDER = ("rank", "run_at", "id")
#: The same as SQL, and as a key of a job: its position in its queue.
BY_ORDER, POSITION = ", ".join(ORDER), attrgetter(*ORDER)


class Part(Flag):
    #: Each call writes it.
    CALL = auto()
    #: A call writes it if the value is not the default. Otherwise the database fills it in.
    SAID = auto()
    #: A claim reads it. Every other column is read when code accesses it.
    CLAIM = auto()
    #: The end of a run, or a retry, writes it.
    FINISH = auto()
    #: It counts what happened to the job; a retry by hand resets it to zero.
    COUNT = auto()


_PARTS = {
    "id": Part.CALL | Part.CLAIM,
    "task": Part.CALL | Part.CLAIM,
    "queue": Part.CALL | Part.CLAIM,
    "args": Part.CALL | Part.CLAIM,
    "kwargs": Part.SAID | Part.CLAIM,
    "options": Part.SAID | Part.CLAIM,
    "rank": Part.SAID | Part.CLAIM,
    "retries": Part.SAID | Part.CLAIM | Part.FINISH | Part.COUNT,
    "parent_id": Part.SAID | Part.CLAIM,
    "root": Part.SAID | Part.CLAIM,
    "made_at": Part.SAID | Part.CLAIM,
    "expires_at": Part.SAID | Part.CLAIM,
    "marker_key": Part.SAID | Part.CLAIM,
    "limit_key": Part.SAID | Part.CLAIM,
    "priority": Part.SAID | Part.CLAIM,
    "state": Part.SAID | Part.CLAIM | Part.FINISH,
    "run_at": Part.SAID | Part.CLAIM | Part.FINISH,
    "lease": Part.CLAIM,
    "token": Part.CLAIM,
    "node_id": Part.CLAIM,
    "backend": Part.CLAIM,
    "crashes": Part.CLAIM | Part.FINISH | Part.COUNT,
    "node_losses": Part.CLAIM | Part.FINISH | Part.COUNT,
    "snoozes": Part.CLAIM | Part.FINISH | Part.COUNT,
    "started_at": Part.CLAIM,
    "unique_key": Part.CLAIM,
    "unique_until": Part.CLAIM,
    "unique_expires_at": Part.CLAIM,
    "finished_at": Part.FINISH,
    "error": Part.FINISH,
    "errors": Part.FINISH,
}


#: The columns of extensions: a call may set them, and a claim reads them.
ADDED: list[str] = []
#: Those that are options of a call: what a value must be, in words and as types.
OPTIONS: dict[str, tuple[str, tuple[type, ...]]] = {}


def add(name: str) -> None:
    ADDED.append(name)
    _PARTS[name] = Part.SAID | Part.CLAIM
    named.cache_clear()


@cache
def named(part: Part) -> tuple[str, ...]:
    """The columns of a part."""
    return tuple(name for name, parts in _PARTS.items() if part in parts)
