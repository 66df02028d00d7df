"""The part of the broker in the core."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.doors import Extension


class Broker(Extension):
    def prune(self, using: str, budget: float) -> Mapping[str, int]:
        from jobs.contrib.transport import store

        return {"messages": store.prune_replies()} if store.are_in(using) else {}

    def disown(self, using: str, is_dry: bool) -> Mapping[str, int]:
        from jobs.contrib.transport import store

        if not store.are_in(using):
            return {"messages": 0}
        return {"messages": store.count() if is_dry else store.delete_all()}
