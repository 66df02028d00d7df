"""A table as ``rich`` draws it."""

import io
import shutil
from collections.abc import Sequence
from typing import Any

from jobs.contrib.console import tables
from jobs.models import ENDED, LIVE

#: Columns whose cells are not wrapped; and the colours of states.
WHOLE = ("id", "state", "created", "worker", "queue")
COLOURS: dict[str, str] = dict(zip((*LIVE, *ENDED), ("blue", "cyan", "yellow", "green", "red", "dim"), strict=True))


def table(rows: Sequence[Sequence[Any]]) -> str:
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        # ``rich`` is not installed.
        return tables.table(rows)
    [head, *body], is_number = tables.cells(rows)
    # As wide as a plain table.
    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name, right in zip(head, is_number, strict=True):
        found.add_column(Text(name), justify="right" if right else "left", no_wrap=name in WHOLE, overflow="fold")
    for row in body:
        found.add_row(*(Text(cell, COLOURS.get(cell, "")) for cell in row))
    out = io.StringIO()
    width = shutil.get_terminal_size().columns
    Console(file=out, force_terminal=True, width=width, highlight=False).print(found)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
