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


def fit(rows: Sequence[Sequence[Any]], width: int) -> list[list[str]]:
    """The rows, cut so that a line has ``width`` characters: first the last column, to 20, then the widest, to 8."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    while over > 0 and max(widths) > 8:
        place = len(widths) - 1 if widths[-1] > 20 else widths.index(max(widths))
        widths[place] -= 1
        over -= 1
    return [[_cut(cell, most) for cell, most in zip(row, widths, strict=True)] for row in texts]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def cells(rows: Sequence[Sequence[Any]]) -> tuple[list[list[str]], list[bool]]:
    """The rows as texts, and which columns have numbers."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    return texts, [cell.strip("~+").isdigit() for cell in texts[-1]]
