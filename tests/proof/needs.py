"""What these tests need: CI has it."""

import os
import shutil

import pytest

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None and "JOBS_TEST_REQUIRE_SERVERS" not in os.environ, reason="apt install spin"
)
