"""How often workers look for jobs, and claim some."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from celery import signals

#: The path of the file, in the environment of a worker that loads this module.
NAME = "JOBS_TEST_LOOKS"


class Looks:
    """Of those workers that get its ``env``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {NAME: str(path)}

    def count(self, name: str = "claim") -> int:
        return Counter(self.path.read_text().split())[name]


@signals.worker_init.connect
def note_looks(**kwargs):
    """How the processes of a worker look for jobs, a line each: by a claim, or by a question.

    This is before the worker forks. Extensions are there by then.
    """
    if NAME not in os.environ:
        return
    from jobs import extensions, store
    from jobs.lifecycle.claims import Claimer

    def note(owner, name, word):
        real = getattr(owner, name)

        def note_and_call(*args, **kwargs):
            with open(os.environ[NAME], "a") as file:
                file.write(f"{word}\n")
            return real(*args, **kwargs)

        setattr(owner, name, note_and_call)

    note(extensions.instead(Claimer), "take", "claim")
    note(store.Store, "has_ready", "look")
