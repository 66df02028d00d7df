"""What of the broker takes part in the core."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.doors import Extension


class Broker(Extension):
    def prune(self, using: str, budget: float) -> Mapping[str, int]:
        from jobs.contrib.transport import messages

        return {"messages": messages.prune_replies()} if messages.are_in(using) else {}

    def survey(self, using: str) -> Mapping[str, int]:
        from jobs.contrib.transport import messages

        return {"messages": messages.count() if messages.are_in(using) else 0}

    def disown(self, using: str) -> None:
        from jobs.contrib.transport import messages

        if messages.are_in(using):
            messages.delete_all()
