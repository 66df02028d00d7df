"""What a person, or another program, gives as JSON."""

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """Parse JSON from outside. ``ValueError``: it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
