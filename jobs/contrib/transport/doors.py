"""The part of the broker in the core."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.doors import Extension


class Broker(Extension):
    def prune(self, using: str, budget: float) -> Mapping[str, int]:
        from jobs.contrib.transport import messages

        return {"messages": messages.prune_replies()} if messages.are_in(using) else {}

    def disown(self, using: str, is_dry: bool) -> Mapping[str, int]:
        from jobs.contrib.transport import messages

        if not messages.are_in(using):
            return {"messages": 0}
        return {"messages": messages.count() if is_dry else messages.delete_all()}
