"""Tables of the commands."""

from collections.abc import Sequence
from typing import Any

from jobs.conf.logs import visible


def table(rows: Sequence[Sequence[Any]]) -> str:
    """The rows as a table. The first row has the heads; columns of numbers are aligned to the right."""
    rows, is_number = cells(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{'>' if right else '<'}{width}}}" for width, right in zip(widths, is_number, strict=True))
    return "\n".join(line.format(*row).rstrip() for row in rows)


def cells(rows: Sequence[Sequence[Any]]) -> tuple[list[list[str]], list[bool]]:
    """The rows as texts, and which columns have numbers."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    return texts, [cell.strip("~+").isdigit() for cell in texts[-1]]
