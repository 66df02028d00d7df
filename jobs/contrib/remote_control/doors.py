"""The part of the remote control in the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jobs.doors import Extension


class RemoteControl(Extension):
    @property
    def controls(self) -> Mapping[str, Callable[..., Any]]:  # type: ignore[override]
        from jobs.contrib.remote_control import commands_of_celery as ours

        return {name: getattr(ours, name) for name in ("active", "query_task", "revoke", "revoke_by_stamped_headers")}
