"""The part of stock calls in the core."""

from __future__ import annotations

from functools import partial
from typing import Any

from jobs.doors import Extension


def _send(app: Any, *args: Any, **options: Any) -> Any:
    # A task may be declared before there are models.
    from jobs.contrib.stock_calls import sending

    return sending.send(app, *args, **options)


class StockCalls(Extension):
    def declared(self, task: type[Any]) -> None:
        """With the first of our tasks ``app.send_task`` respects transactions."""
        app = task._get_app()
        if "send_task" not in vars(app):
            app.send_task = partial(_send, app)
