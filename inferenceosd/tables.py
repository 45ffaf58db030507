"""Aligned columns of text."""

from collections.abc import Iterable, Sequence
from unicodedata import combining, east_asian_width

GAP = "  "


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = "") -> str:
    """`rows` under `headers`, each column as wide as its widest cell.

    `right` names the headers, separated by blanks, whose columns stand flush right.
    """
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    flush = [header in right.split() for header in headers]
    return "\n".join(
        GAP.join(
            _padded(cell, width, flush_right=is_right)
            for cell, width, is_right in zip(line, widths, flush, strict=True)
        ).rstrip()
        for line in lines
    )


def _padded(cell: str, width: int, *, flush_right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if flush_right else cell + blanks


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in ("W", "F") else 1 for char in text
    )
