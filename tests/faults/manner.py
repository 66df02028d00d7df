"""The manners in which a fault strikes."""

from __future__ import annotations

from typing import Any

import pytest


def again(*values: Any) -> Any:
    """Parameters of a scenario that are the same fault in another manner: they run with ``--faults=all`` only."""
    return pytest.param(*values, marks=pytest.mark.again)
