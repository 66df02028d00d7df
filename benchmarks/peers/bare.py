"""No queue: processes share the numbers, and do nothing but the body.

No queue that commits each body by itself can be faster.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Peer


@dataclass(frozen=True, kw_only=True)
class Bare(Peer):
    def task(self, body: Callable[[int], None]) -> Any:
        return body

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        _share().write_text(json.dumps([task.__name__, list(numbers)]))

    def purge(self) -> None:
        _share().unlink(missing_ok=True)

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.peers.bare", str(processes)]]


def _share() -> Path:
    return Path(f"{os.environ['BENCH_COMPLETIONS']}.share")


def _work(processes: int) -> None:
    import django

    django.setup()
    from benchmarks.project.tasks import TASKS

    name, numbers = json.loads(_share().read_text())
    for number in range(processes):
        if not os.fork():
            for each in numbers[number::processes]:
                TASKS[name](each)
            os._exit(0)
    for _ in range(processes):
        os.wait()


PEERS = (Bare(name="bare", about="processes that do nothing but the body"),)

if __name__ == "__main__":
    _work(int(sys.argv[1]))
