"""Ways through the model are played against the code, and a guard's counterexample ends where the guard is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proof import spin
from proof.guards import CODE
from proof.player import Differs, Player
from tests.faults.guards import ROOT
from tests.proof.needs import needs_spin

pytestmark = [needs_spin, pytest.mark.django_db(transaction=True)]

SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "*.sqlite3*", "build", "*.egg-info", "var", "docs", "benchmarks")


@pytest.fixture
def player():
    player = Player()
    yield player
    player.close()


@pytest.mark.database
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_the_code_goes_the_ways_of_the_model(player, count):
    for way in spin.walks("ownership", ("FAULTS=3",), range(count)):
        player.play(way)


@pytest.mark.parametrize("flag", CODE)
def test_the_code_does_not_go_the_way_of_a_counterexample(player, flag, tmp_path):
    trace = spin.search("ownership", ("ONE", "FAULTS=2", flag)).trace
    assert trace
    with pytest.raises(Differs):
        player.play(trace)


@pytest.mark.slow
@pytest.mark.parametrize("flag", CODE)
def test_without_its_guard_the_code_goes_the_way_of_a_counterexample(flag, tmp_path):
    """On SQLite, where each fence is written once."""
    trace = tmp_path / "trace"
    trace.write_text("\n".join(spin.search("ownership", ("ONE", "FAULTS=2", flag)).trace or ()))
    copy = Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=SKIPPED))
    file = CODE[flag].file(copy)
    file.write_text(CODE[flag].taken_out(file.read_text()))
    command = [sys.executable, "-m", "proof", "play", "--trace", str(trace)]
    environment = {**os.environ, "PYTHONPATH": str(copy), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    environment.pop("DATABASE_URL", None)
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "nothing differs" in done.stdout
