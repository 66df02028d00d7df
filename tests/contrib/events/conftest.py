from __future__ import annotations

import pytest

from jobs.events import prune


@pytest.fixture(autouse=True)
def _walks_begin_anew():
    prune._walks.clear()
