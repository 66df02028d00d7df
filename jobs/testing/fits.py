"""Whether a handler understands what another service tells of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any


def assert_fits(handler: Any, schema: Mapping[str, Any] | str | PathLike[str]) -> None:
    """Assert that events of a producer's schema fit a handler's parameters.

    Parameters:
        handler: the task that ``@handler`` made.
        schema: JSON Schema of the event, or the file that holds it.

    Raises:
        AssertionError: names each field that does not fit, and why.
    """
    producer = schema if isinstance(schema, Mapping) else json.loads(Path(schema).read_text())
    if found := handler.run.schema.misfits(producer):
        title = producer.get("title", "the event")
        raise AssertionError(f"{handler.name} does not fit {title}:\n" + "\n".join(f"* {one}" for one in found))
