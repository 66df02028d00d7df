"""The core stands without its extensions: its own tests pass in a copy from which they were moved away.

Not for all of them yet: some tests of the core still ask for an extension. Until then JOBS_TEST_WITHOUT names those to
try (``all``, or names with commas).
"""

from __future__ import annotations

import os

import pytest

from tests.helpers import without

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Of the core's tests, for each single extension: what extensions reach into most.
SOME = [f"tests/core/{room}" for room in ("calling", "lifecycle/test_claims.py", "execution", "maintenance", "admin")]


@pytest.mark.parametrize("name", filter(None, os.environ.get("JOBS_TEST_WITHOUT", "").split(",")))
def test_the_core_passes_its_tests_without(name):
    ran = without.run(name, ["tests/core"] if name == without.ALL else SOME, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
