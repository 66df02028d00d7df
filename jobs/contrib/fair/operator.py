"""What the operator's room shows of fair shares."""

from typing import Any

from jobs.contrib.fair import waiting

metrics = waiting.metrics


def status(found: dict[str, Any]) -> dict[str, Any]:
    return {"fair": waiting.status(found)}
