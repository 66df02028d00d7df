"""Which lines of a traceback are the project's own."""

import re
from pathlib import Path

#: A frame of a traceback, with the lines of source and markers below it.
_FRAME = re.compile(r'^  File "(?P<path>[^"]*)", line \d+.*\n(?:    .*\n?)*', re.MULTILINE)

#: Paths of installed packages, of Python itself, and of this app. The traceback may come from another machine.
FOREIGN = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]|^<frozen |^"
    + re.escape(str(Path(__file__).parents[2]))
    + r"[/\\]"
)


def own_frames(traceback: str) -> str:
    """The frames of the project's own code. Empty if there are none, or if all frames are."""
    frames = list(_FRAME.finditer(traceback))
    mine = [frame[0] for frame in frames if not FOREIGN.search(frame["path"])]
    return "".join(mine) if len(mine) < len(frames) else ""
