"""A player for each model: it knows which function of ``jobs`` each step is."""

from collections.abc import Iterator
from contextlib import contextmanager

from proof.player import Player
from proof.players.batch import Batch
from proof.players.events import Events
from proof.players.judge import Judge
from proof.players.limit import Limit
from proof.players.ownership import Ownership
from proof.players.rescue import Rescue
from proof.players.signal import Signal
from proof.players.unique import Unique

_KINDS = (Ownership, Rescue, Judge, Unique, Limit, Batch, Signal, Events)
PLAYERS: dict[str, type[Player]] = {each.model: each for each in _KINDS}


@contextmanager
def plays(kind: type[Player]) -> Iterator[Player]:
    player = kind()
    try:
        yield player
    finally:
        player.close()
