"""The core stands without its extensions: its own tests pass in a copy from which they were moved away.

JOBS_TEST_WITHOUT names the extensions that are taken out one by one, with commas; by default all go at once.
"""

from __future__ import annotations

import os

import pytest

from tests.helpers import without

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: For each single extension: what extensions reach into most.
SOME = [
    *(f"tests/core/{each}.py" for each in ("calling/test_outbox", "lifecycle/test_claims", "execution/test_execution")),
    "tests/contrib/pages/test_admin.py",
]


@pytest.mark.parametrize("name", os.environ.get("JOBS_TEST_WITHOUT", without.ALL).split(","))
def test_the_core_passes_its_tests_without(name):
    some = [each for each in SOME if f"/{name}/" not in each]
    ran = without.run(name, ["tests/core"] if name == without.ALL else some, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
