"""A cluster on a simulated clock: the promise holds in it, and a seed repeats it."""

from __future__ import annotations

import pytest

from simulation.__main__ import KINDS, run
from simulation.report import is_broken, lines

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

#: Each kind of fault, often: two nodes of two processes, for half a minute.
PLAN = {
    "nodes": 2,
    "processes": 2,
    "hours": 0.008,
    "rate": 0.7,
    "length": 2.0,
    "limit": 4,
    "often": 60.0,
    "seed": 7,
    "until_idle": True,
}
EVERY = [kind for part in KINDS.values() for kind in part]


@pytest.mark.slow
def test_the_promise_holds_under_every_fault_and_a_seed_repeats_the_run():
    first, second = (run({**PLAN, "kinds": EVERY}) for _ in range(2))
    assert not is_broken(first), lines(first)
    assert first["jobs"] > 0
    assert first["rescues"] > 0
    assert first["faults"]
    assert (first["digest"], first["faults"]) == (second["digest"], second["faults"])


@pytest.mark.slow
def test_a_small_cluster_without_faults():
    found = run({**PLAN, "kinds": [], "hours": 0.002})
    assert not is_broken(found), lines(found)
    assert found["faults"] == {}
    assert found["statements"] > 0
