"""Escapes the text, values and traceback of a log record, as Python would write them."""

from __future__ import annotations

import logging
from typing import Any

from jobs.conf.logs import CONTROLS, visible


class Escaped(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # The template stays as it is, because other programs group records by it.
        record.msg = visible(record.msg) if isinstance(record.msg, str) else record.msg
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            text = logging.Formatter().formatException(record.exc_info)
            if (shown := visible(text, "\n\t")) != text:
                # A formatter uses this as its own cached text.
                record.exc_text = shown
        return True


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float) or not CONTROLS.search(str(value)):
        return value
    return _Text(value)


class _Text:
    """Stands for a value, with its escaped text for ``%s`` and for ``%r``."""

    def __init__(self, value: Any) -> None:
        self._texts = visible(str(value)), visible(repr(value))

    def __str__(self) -> str:
        return self._texts[0]

    def __repr__(self) -> str:
        return self._texts[1]
