"""A run of all cells, in interleaved rounds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.figures import FIGURES, Figure
from benchmarks.peers import PEERS, Peer
from benchmarks.samples import Samples
from benchmarks.servers import Servers
from tests.helpers.servers import Postgres, die_with_parent

ROOT = Path(__file__).parent.parent

#: It runs all cells: no peer has a faster Python than the others.
PYTHON = os.path.abspath(os.environ.get("BENCH_PYTHON_NEWER") or sys.executable)


@dataclass(frozen=True)
class Plan:
    figures: Sequence[str]
    #: None: the peers of each figure.
    peers: Sequence[str] | None
    is_quick: bool
    #: None: the number of each figure.
    rounds: int | None
    seconds: float

    def takers(self, figure: Figure) -> list[str]:
        if self.peers is not None:
            return [name for name in self.peers if name in (*figure.peers, *figure.more_peers)]
        return list((self.is_quick and figure.quick_peers) or figure.peers)

    def all_takers(self) -> list[str]:
        found = {name for figure in self.figures for name in self.takers(FIGURES[figure])}
        return [name for name in PEERS if name in found]

    def rounds_of(self, figure: Figure) -> int:
        return 1 if self.is_quick else min(figure.rounds, self.rounds or figure.rounds)

    def parts(self, figure: Figure) -> Sequence[Mapping[str, Any]]:
        return figure.quick_parts if self.is_quick else figure.parts

    @property
    def most_rounds(self) -> int:
        return max((self.rounds_of(FIGURES[name]) for name in self.figures), default=1)


@dataclass(frozen=True)
class Cell:
    figure: Figure
    peer: Peer
    options: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.figure.name, self.peer.name, json.dumps(self.options)

    def __str__(self) -> str:
        return " ".join([self.figure.name, self.peer.name, *([self.options["body"]] if "body" in self.options else [])])


@dataclass
class Run:
    plan: Plan
    servers: Servers
    #: For SQLite databases, logs and completions.
    directory: Path
    samples: Samples = field(default_factory=Samples)
    rounds: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    _urls: dict[str, str] = field(default_factory=dict)
    _lasted: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _kept: list[int] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def go(self) -> None:
        with processes.adopting_orphans():
            self._kept = processes.descendants()
            self._prepare()
            self._rounds()

    def _rounds(self) -> None:
        for number in range(1, self.plan.most_rounds + 1):
            cells = list(self._cells(number))
            expected = sum(self._lasted.get(cell.key, 0.0) for cell in cells)
            if number > 1 and self.passed + expected > self.plan.seconds:
                self.say(f"no time for round {number}, which takes {expected:.0f} s")
                break
            self.rounds = number
            for cell in cells:
                self._measure(cell, number)

    @property
    def passed(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.passed:6.0f} s  {text}\n")
        sys.stderr.flush()

    def _cells(self, number: int) -> Iterator[Cell]:
        """The cells of a round. The peer that was first in one round is last in the next."""
        for name in self.plan.figures:
            figure = FIGURES[name]
            if number > self.plan.rounds_of(figure):
                continue
            takers = self.plan.takers(figure)
            start = (number - 1) % max(1, len(takers))
            for peer in [*takers[start:], *takers[:start]]:
                if peer in self._urls:
                    parts = [part for part in self.plan.parts(figure) if figure.takes(peer, part)]
                    yield from (Cell(figure, PEERS[peer], part) for part in parts)

    def _prepare(self) -> None:
        """Make a database for each peer. A peer without one takes no part."""
        takers = [PEERS[name] for name in self.plan.all_takers()]
        packages = ["Django", *dict.fromkeys(package for peer in takers for package in peer.packages)]
        asked = subprocess.run(
            [PYTHON, "-m", "benchmarks.machine", *packages], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        self.versions = json.loads(asked.stdout)
        for peer in takers:
            name = peer.name
            try:
                if missing := [package for package in peer.packages[:1] if package not in self.versions]:
                    raise RuntimeError(f"{missing[0]} is not installed: benchmarks/README.md says how")
                for server in peer.servers() & self.servers.missing.keys():
                    raise RuntimeError(self.servers.missing[server])
                url = self._create_database(peer)
                self._call(peer, url, 60, "migrate", "{}")
            except (RuntimeError, OSError) as error:
                self.say(f"{name}: {error}")
                for figure in self.plan.figures:
                    if name in self.plan.takers(FIGURES[figure]):
                        self.samples.fail(figure, name, str(error))
            else:
                self._urls[name] = url
        self.say("databases are ready")

    def _create_database(self, peer: Peer) -> str:
        if peer.database == "sqlite":
            return f"sqlite:///{self.directory / peer.name}.sqlite3"
        server = self.servers.running["postgres"]
        assert isinstance(server, Postgres)
        return server.create_database(peer.name)

    def _measure(self, cell: Cell, number: int) -> None:
        figure, peer = cell.figure, cell.peer
        if number == 1 and self.passed > self.plan.seconds:
            self.samples.fail(figure.name, peer.name, "not run: no time was left")
            self.say(f"{cell}: no time is left")
            return
        began = time.monotonic()
        try:
            found = self._call(peer, self._urls[peer.name], figure.timeout, figure.name, json.dumps(dict(cell.options)))
        except RuntimeError as error:
            self.samples.fail(figure.name, peer.name, str(error))
            said = f"ERROR {error}"
        else:
            values: dict[str, float | None] = json.loads(found)
            self.samples.add(figure.name, peer.name, number, values)
            said = ", ".join(
                f"{column.key} {values[column.key]:,.{column.digits}f}"
                for column in figure.columns
                if column.better and values.get(column.key) is not None
            )
        self._lasted[cell.key] = time.monotonic() - began
        self.say(f"round {number}/{self.plan.most_rounds}  {cell}: {said} ({self._lasted[cell.key]:.0f} s)")

    def _call(self, peer: Peer, url: str, timeout: float, *arguments: str) -> str:
        """
        Returns:
            The last line that the cell printed.

        Raises:
            RuntimeError: it failed, or took too long. None of its processes is left.
        """
        log = self.directory / "log"
        completions = self.directory / "completions"
        environment = {
            **os.environ,
            **{f"BENCH_{name.upper()}_URL": value for name, value in self.servers.urls().items()},
            "BENCH_PIDS": json.dumps(self.servers.pids()),
            "BENCH_PEER": peer.name,
            "BENCH_DATABASE_URL": url,
            "BENCH_COMPLETIONS": str(completions),
            "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings",
            "PYTHONPATH": str(ROOT),
        }
        command = die_with_parent(PYTHON, "-m", "benchmarks.cell", *arguments)
        with log.open("wb") as err:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=err, start_new_session=True
            )
            try:
                out, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"took more than {timeout:.0f} s{self._last_words(log)}") from None
            finally:
                processes.kill(keep=self._kept)
        if process.returncode:
            raise RuntimeError(self._last_words(log).removeprefix("; ") or f"exit status {process.returncode}")
        lines = out.decode().splitlines()
        return lines[-1] if lines else ""

    def _last_words(self, log: Path) -> str:
        """The last error in the log, without paths."""
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Missing|Refused)\b", line)]
        for last in errors[-1:] or lines[-1:]:
            return "; " + re.sub(r"(?<![\w:])/(?:[^\s/'\"]+/)+", "", last)[:200]
        return ""
