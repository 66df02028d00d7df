"""What the soak calls growth. That it finds a leak of real processes it shows itself (``--faults=soak -m slow``)."""

from __future__ import annotations

import random

import pytest

from tests.faults.soak import Series

MIB = 2**20


def memory(value_at) -> Series:
    return Series("child 1", "memory", tuple((float(at), value_at(at)) for at in range(0, 3600, 5)))


@pytest.mark.parametrize(
    "value_at",
    [
        lambda at: 80 * MIB,
        lambda at: (80 if at > 900 else 40 + 40 * at / 900) * MIB,
        lambda at: (80 + random.Random(at).uniform(-10, 10)) * MIB,
        lambda at: (400 if at == 3000 else 80) * MIB,
        lambda at: (80 + at / 3600) * MIB,
    ],
    ids=["flat", "warm-up", "noise", "one outlier", "a little"],
)
def test_what_is_no_growth(value_at):
    assert not memory(value_at).grows


def test_a_slow_leak_under_noise_is_growth():
    assert memory(lambda at: (80 + 30 * at / 3600 + random.Random(at).uniform(-2, 2)) * MIB).grows


def test_a_process_that_lived_for_a_moment_says_nothing():
    assert not Series("child 1", "memory", tuple((5.0 * at, 80.0 * MIB * at) for at in range(5))).grows
