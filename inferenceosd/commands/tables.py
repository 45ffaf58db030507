"""Aligned columns of text."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from unicodedata import combining, east_asian_width

GAP = "  "
LEAST_COLUMNS = 24  # of what is folded: narrower, it is harder to read than a long line


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: str = "",
    columns: int | None = None,
) -> str:
    """`rows` under `headers`, each column as wide as its widest cell; without rows, nothing.

    `right` names the headers, separated by blanks, whose columns stand flush right. With `columns`,
    the terminal's, the last cell of a row is folded below its start.
    """
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    if len(lines) == 1:
        return ""
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    flush = [header in right.split() for header in headers]
    return "\n".join(
        folded(
            "".join(
                _padded(cell, width, flush_right=is_right) + GAP
                for cell, width, is_right in zip(line[:-1], widths, flush, strict=False)
            ),
            _padded(line[-1], widths[-1], flush_right=flush[-1]).rstrip(),
            columns=columns,
        )
        for line in lines
    )


def folded(head: str, text: str, *, columns: int | None) -> str:
    """`head` and `text`, which goes on below its start where the terminal's columns end."""
    start = _width(head)
    if columns is None or columns - start < LEAST_COLUMNS or start + _width(text) <= columns:
        return (head + text).rstrip()
    lines = wrap(text, columns - start, break_long_words=False, break_on_hyphens=False)
    return head + f"\n{' ' * start}".join(lines)


def many(count: int, what: str) -> str:
    """`count` of `what`, as "1 launch" and "2 launches"."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}{'es' if what.endswith('h') else 's'}"


def _padded(cell: str, width: int, *, flush_right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if flush_right else cell + blanks


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in ("W", "F") else 1 for char in text
    )
