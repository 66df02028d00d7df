"""Ways through the models are played against the code, and a guard's counterexample ends where the guard is."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from proof import spin
from proof.checks import MODELS
from proof.guards import OUT, Code
from proof.page import TRACES
from proof.player import Differs
from proof.players import PLAYERS, plays
from tests.proof.needs import needs_spin

#: Those that a trace of the model can take out.
CODES = {
    f"{model}: {guard}": (model, guard)
    for (model, guard), code in OUT.items()
    if isinstance(code, Code) and not code.by
}
GUARDS = {(model.name, guard.name) for model in MODELS for guard in model.guards}


@needs_spin
@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", PLAYERS)
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_the_code_goes_the_ways_of_the_model(model, count):
    with plays(PLAYERS[model]) as player:
        for way in spin.walks(model, player.flags, range(count)):
            player.play(way)


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", CODES)
def test_the_code_goes_the_way_of_a_counterexample_without_the_guard_and_only_then(name):
    model, guard = CODES[name]
    code = OUT[model, guard]
    if connection.vendor not in code.on:
        pytest.skip(f"its trace does not play on {connection.vendor}")
    with plays(PLAYERS[model]) as player:
        assert not player.misses(code, json.loads(TRACES.read_text())[model][guard])


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_a_call_of_a_key_that_is_not_committed_does_not_go_the_way_of_its_counterexample():
    """What waits is the database: that cannot be taken out."""
    with plays(PLAYERS["unique"]) as player, pytest.raises(Differs):
        player.play(json.loads(TRACES.read_text())["unique"]["a call waits for another's that is not committed"])


def test_each_guard_is_taken_out_of_the_code_or_it_is_said_why_not():
    assert set(OUT) == GUARDS
