"""The part of the turns in the core."""

from __future__ import annotations

from typing import Any

from jobs import store
from jobs.conf import conf
from jobs.doors import Extension


class WriteTurns(Extension):
    instead = {"jobs.store.base.write_turn": "jobs.contrib.write_turns.turns.held"}

    def starting(self, worker: Any) -> None:
        if any(store.of(alias).has_one_writer for alias in conf().DATABASES):
            from jobs.contrib.write_turns import turns

            turns.install()
