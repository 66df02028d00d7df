"""Which lines of a traceback, or of running code, are the project's own."""

import os
import re
from pathlib import Path
from types import FrameType

#: A frame of a traceback, with the lines of source and markers below it.
_FRAME = re.compile(r'^  File "(?P<path>[^"]*)", line \d+.*\n(?:    .*\n?)*', re.MULTILINE)

#: Paths of installed packages, of Python itself, and of this app. The traceback may come from another machine.
FOREIGN = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]|^<frozen |^"
    + re.escape(str(Path(__file__).parents[1]))
    + r"[/\\]"
)


def own_frames(traceback: str) -> str:
    """The frames of the project's own code. Empty if there are none, or if all frames are."""
    frames = list(_FRAME.finditer(traceback))
    mine = [frame[0] for frame in frames if not FOREIGN.search(frame["path"])]
    return "".join(mine) if len(mine) < len(frames) else ""


def own_line(frame: FrameType | None, until: str) -> tuple[str, int]:
    """The innermost own line among a frame and its callers, up to a frame of the file ``until``; or ``"", 0``."""
    while frame is not None and (path := frame.f_code.co_filename) != until:
        if not path.startswith("<") and not FOREIGN.search(path):
            return shown(path), frame.f_lineno
        frame = frame.f_back
    return "", 0


def shown(path: str) -> str:
    """The path relative to the working directory, if it is below it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
