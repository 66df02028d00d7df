"""How the subcommands write tables: plain into a pipe, and with rich, if it is installed, on a terminal."""

from __future__ import annotations

import io
import shutil
from typing import Any

from jobs.models import State

#: Columns whose cells are never broken.
WHOLE = ("id", "state", "created", "worker", "queue")

#: Of a cell that is the name of a state.
COLOURS: dict[str, str] = {
    State.SCHEDULED: "blue",
    State.READY: "cyan",
    State.RUNNING: "yellow",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}


def table(rows: list[list[Any]], is_terminal: bool = False) -> str:
    """Columns in line, the first row their heads; numbers to the right."""
    is_number = [str(cell).rstrip("+").isdigit() for cell in rows[-1]]
    if is_terminal:
        try:
            return _rich(rows, is_number)
        except ImportError:
            pass
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            str(cell).rjust(width) if right else str(cell).ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    )


def _rich(rows: list[list[Any]], is_number: list[bool]) -> str:
    """
    Raises:
        ImportError: rich is not installed.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    head, *body = rows
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(head, is_number, strict=True):
        # An id is of use only as a whole, and a state or a moment is hard to read in pieces.
        found.add_column(Text(str(name)), justify="right" if right else "left", no_wrap=name in WHOLE, overflow="fold")
    for row in body:
        found.add_row(*(Text(str(cell), COLOURS.get(cell, "") if isinstance(cell, str) else "") for cell in row))
    out = io.StringIO()
    width = shutil.get_terminal_size().columns
    Console(file=out, force_terminal=True, width=width, highlight=False).print(found)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
