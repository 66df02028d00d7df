"""The part of the traces in the core. Calls and runs come by often: each door is the function itself."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Tracing(Extension):
    @property
    def composed(self) -> Any:
        from jobs.contrib.tracing import spans

        return spans.create

    @property
    def committed(self) -> Any:
        from jobs.contrib.tracing import spans

        return spans.created

    @property
    def publishing(self) -> Any:
        from jobs.contrib.tracing import spans

        return spans.apart

    @property
    def around(self) -> Any:
        from jobs.contrib.tracing import spans

        return spans.processing

    @property
    def carried(self) -> Any:
        from jobs.contrib.tracing import spans

        return spans.carried
