"""SPIN: a model is made into a program, which searches all its states, the shortest ways first."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent / "models"
#: Megabytes for one search.
MEMORY = 3000


class Missing(Exception):
    """SPIN or a C compiler is not installed."""


@dataclass(frozen=True)
class Found:
    states: int
    seconds: float
    #: What leads to the violation; None: there is none.
    trace: list[str] | None


@contextmanager
def _directory(model: str) -> Iterator[Path]:
    if missing := [name for name in ("spin", "gcc") if shutil.which(name) is None]:
        raise Missing(f"{' and '.join(missing)} cannot be found: apt install spin gcc libc6-dev")
    with tempfile.TemporaryDirectory(prefix="jobs-proof-") as made:
        shutil.copy(MODELS / f"{model}.pml", made)
        yield Path(made)


def _run(directory: Path, *command: str) -> str:
    # Values that do not fit would be cut off in silence.
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "truncated" in done.stdout:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def version() -> str:
    """Without its date."""
    said = subprocess.run(["spin", "-V"], capture_output=True, text=True, check=True).stdout
    return said.partition(" --")[0].strip()


def _defined(flags: Sequence[str]) -> list[str]:
    return [f"-D{flag}" for flag in flags]


def search(model: str, flags: Sequence[str], is_deep: bool = False) -> Found:
    """Search all states of a model, breadth first: so what is found is the shortest way to it."""
    return _search(model, flags, ["-DSAFETY", "-DBFS"], [], is_deep)


def search_cycles(model: str, flags: Sequence[str]) -> Found:
    """Search for a run that never ends, though everybody who can go on does so in the end (weak fairness)."""
    return _search(model, flags, ["-DNP", "-DNFAIR=3"], ["-l", "-f"], False)


def _search(model: str, flags: Sequence[str], how: list[str], options: list[str], is_deep: bool) -> Found:
    with _directory(model) as directory:
        began = time.monotonic()
        _run(directory, "spin", "-a", *_defined(flags), f"{model}.pml")
        level = "-O1" if is_deep else "-O0"
        _run(directory, "gcc", level, "-w", *how, "-DVECTORSZ=2048", f"-DMEMLIM={MEMORY}", "-o", "pan", "pan.c")
        said = _run(directory, "./pan", "-m1000000", *options)
        errors = re.search(r"errors: (\d+)", said)
        states = re.search(r"(\d+) states, stored", said)
        if errors is None or states is None or ("Search not completed" in said and errors[1] == "0"):
            raise RuntimeError(f"the search of {model} with {' '.join(flags)} did not end: {said[-2000:]}")
        trace = None
        if errors[1] != "0":
            trace = said_steps(_run(directory, "spin", "-t", *_defined(flags), f"{model}.pml"))
        return Found(int(states[1]), time.monotonic() - began, trace)


def walks(model: str, flags: Sequence[str], seeds: Iterable[int]) -> Iterator[list[str]]:
    """Ways through the model from its beginning to an end, each step by chance."""
    with _directory(model) as directory:
        for seed in seeds:
            yield said_steps(_run(directory, "spin", f"-n{seed}", "-u20000", *_defined(flags), f"{model}.pml"))


def said_steps(text: str) -> list[str]:
    """What the model says of each step: ``@ who does what``, and ``= rows`` after it."""
    return [line.strip() for line in text.splitlines() if line.lstrip().startswith(("@ ", "= "))]
