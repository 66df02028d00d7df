"""How the subcommands write tables."""

from __future__ import annotations

from typing import Any


def table(rows: list[list[Any]]) -> str:
    """Columns in line; numbers to the right."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    is_number = [isinstance(cell, int) for cell in rows[-1]]
    return "\n".join(
        "  ".join(
            str(cell).rjust(width) if right else str(cell).ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    )
