"""Tables of the commands: plain into a pipe, and with ``rich``, if it is installed, on a terminal."""

import io
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from jobs.conf.logs import visible
from jobs.models import ENDED, LIVE

#: Columns whose cells are not broken into lines; and the colours of states.
WHOLE = ("id", "state", "created", "worker", "queue")
COLOURS: dict[str, str] = dict(zip((*LIVE, *ENDED), ("blue", "cyan", "yellow", "green", "red", "dim"), strict=True))


def table(rows: Sequence[Sequence[Any]], is_rich: bool) -> str:
    """The rows as a table. The first row has the heads; columns of numbers are aligned to the right."""
    rows = [[visible(str(cell)) for cell in row] for row in rows]
    is_number = [cell.rstrip("+").isdigit() for cell in rows[-1]]
    if is_rich:
        with suppress(ImportError):  # rich is not installed.
            return _rich(rows, is_number)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{'>' if right else '<'}{width}}}" for width, right in zip(widths, is_number, strict=True))
    return "\n".join(line.format(*row).rstrip() for row in rows)


def _rich(rows: Sequence[Sequence[str]], is_number: list[bool]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    head, *body = rows
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(head, is_number, strict=True):
        found.add_column(Text(name), justify="right" if right else "left", no_wrap=name in WHOLE, overflow="fold")
    for row in body:
        found.add_row(*(Text(cell, COLOURS.get(cell, "")) for cell in row))
    out = io.StringIO()
    width = shutil.get_terminal_size().columns
    Console(file=out, force_terminal=True, width=width, highlight=False).print(found)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
