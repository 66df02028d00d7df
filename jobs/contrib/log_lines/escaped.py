"""A record of the log whose text, values and traceback are escaped as Python writes them."""

from __future__ import annotations

import logging
from typing import Any

from jobs.conf.logs import CONTROLS, visible


class Escaped(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # The template stays, because others group by it.
        record.msg = visible(record.msg) if isinstance(record.msg, str) else record.msg
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            text = logging.Formatter().formatException(record.exc_info)
            if (shown := visible(text, "\n\t")) != text:
                # A formatter takes it for its own.
                record.exc_text = shown
        return True


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float) or not CONTROLS.search(str(value)):
        return value
    return _Text(value)


class _Text:
    """What a value says, by ``%s`` and by ``%r``."""

    def __init__(self, value: Any) -> None:
        self._texts = visible(str(value)), visible(repr(value))

    def __str__(self) -> str:
        return self._texts[0]

    def __repr__(self) -> str:
        return self._texts[1]
