"""The core stands without its extensions: its own tests pass in a copy from which they were moved away."""

from __future__ import annotations

import pytest

from tests.helpers import without

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Of the core's tests, for each single extension: what extensions reach into most.
SOME = [f"tests/core/{room}" for room in ("calling", "lifecycle/test_claims.py", "execution", "maintenance", "admin")]


@pytest.mark.parametrize("name", [*without.names(), without.ALL])
def test_the_core_passes_its_tests_without(name):
    ran = without.run(name, ["tests/core"] if name == without.ALL else SOME, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
