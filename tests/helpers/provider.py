"""A payment provider in a process of its own, as the tests need it: it can die, wait and forget.

    python -m tests.helpers.provider PORT LEDGER

The ledger has one line of JSON for each request and each charge, and outlives the process. ``LEDGER.hold`` makes it
keep its answers back until the file is gone, ``LEDGER.die`` kills it once, right after it charged.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from http.server import ThreadingHTTPServer
from pathlib import Path

from shop.demo.payment_provider import Handler, Ledger
from tests.helpers.servers import accepts, die_with_parent, free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]


class Provider:
    """The process, seen from a test."""

    def __init__(self, directory: Path) -> None:
        self.ledger = directory / "ledger"
        self.hold, self.die = directory / "ledger.hold", directory / "ledger.die"
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = die_with_parent(sys.executable, "-m", "tests.helpers.provider", str(self.port), str(self.ledger))
        self.process = subprocess.Popen(command, cwd=ROOT)
        wait_for(lambda: accepts(self.port), 20, "the provider answers")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self, kind: str) -> Counter:
        """How many requests, or charges, there were for each key."""
        if not self.ledger.exists():
            return Counter()
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return Counter(line["key"] for line in lines if line["kind"] == kind)

    @property
    def requests(self) -> Counter:
        return self.lines("request")

    @property
    def charges(self) -> Counter:
        return self.lines("charge")


def serve(port: int, path: Path) -> None:
    hold, die = path.with_suffix(".hold"), path.with_suffix(".die")

    class Misbehaving(Handler):
        ledger = Ledger(path)

        def before_answer(self) -> None:
            if die.exists():
                die.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            while hold.exists():
                time.sleep(0.02)

    ThreadingHTTPServer(("127.0.0.1", port), Misbehaving).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
