"""The frames of a traceback that are the project's own: where to look first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jobs

#: One frame, with the lines of source and markers below it.
_FRAME = re.compile(r'^  File "(?P<path>[^"]*)", line \d+.*\n(?:    .*\n?)*', re.MULTILINE)

#: What is installed, or comes with Python; the text may be from another machine.
_FOREIGN = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]|^<frozen ")

_HERE = str(Path(jobs.__file__).parent) + os.sep


def own(traceback: str) -> str:
    """As they stand there, those of the causes before the others; empty if there are none, or no others."""
    frames = list(_FRAME.finditer(traceback))
    mine = [frame[0] for frame in frames if not _FOREIGN.search(frame["path"]) and not frame["path"].startswith(_HERE)]
    return "".join(mine) if len(mine) < len(frames) else ""
