"""Layout of tables in a limited width, by pure functions.

A table that is too wide loses its empty columns; then its cells are wrapped between words. If that is not enough, a row
continues on further, indented lines, so that IDs and names stay in one piece and can be copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

GAP = "  "
INDENT = "    "
READABLE = 16
"""Minimum width in characters of a column whose cells are wrapped."""
EMPTY = ("", "-")
"""The content of cells without a value. A column that has only such cells may be omitted."""

Row = Sequence[str]


def lay_out(headings: Row, rows: Sequence[Row], width: int | None = None) -> tuple[list[str], list[str]]:
    """Returns the lines of the headings and those of the rows.

    Args:
        width: The maximum number of characters of a line; None for no limit. Only a longer word may exceed
            the limit.
    """
    cells = [headings, *rows]
    if width is None or _total(_widths(cells)) <= width:
        return _divided([(list(range(len(headings))), _widths(cells))], cells)
    kept = [column for column in range(len(headings)) if any(row[column] not in EMPTY for row in rows)]
    cells = [[row[column] for column in kept or range(len(headings))] for row in cells]
    widths, words = _widths(cells), _widths([[_longest_word(cell) for cell in row] for row in cells])
    least = [min(own, max(word, READABLE)) for own, word in zip(widths, words, strict=True)]
    if _total(least) <= width:
        while (over := _total(widths) - width) > 0:
            wide = [column for column in range(len(widths)) if widths[column] > least[column]]
            widest = max(wide, key=widths.__getitem__)
            widths[widest] = max(least[widest], widths[widest] - over)
        return _divided([(list(range(len(widths))), widths)], cells)
    return _divided(list(_folded(widths, width)), cells)


Part = tuple[list[int], list[int]]
"""The columns of one line, and their widths."""


def _folded(widths: list[int], width: int) -> Iterator[Part]:
    """Divides the columns into lines, each with as many columns as fit."""
    columns: list[int] = []
    chosen: list[int] = []
    left = width
    for column, wanted in enumerate(widths):
        if columns and wanted > left:
            yield columns, chosen
            columns, chosen, left = [], [], width - len(INDENT)
        own = max(1, min(wanted, width - len(INDENT)))
        columns.append(column)
        chosen.append(own)
        left -= own + len(GAP)
    yield columns, chosen


def _divided(parts: list[Part], cells: Sequence[Row]) -> tuple[list[str], list[str]]:
    lines = [list(_lines(row, parts)) for row in cells]
    return lines[0], [line for row in lines[1:] for line in row]


def _lines(row: Row, parts: list[Part]) -> Iterator[str]:
    for number, (columns, widths) in enumerate(parts):
        wrapped = [_wrapped(row[column], width) for column, width in zip(columns, widths, strict=True)]
        if number and not any(row[column] for column in columns):
            continue
        for line in range(max(map(len, wrapped), default=0)):
            texts = [lines[line] if line < len(lines) else "" for lines in wrapped]
            text = GAP.join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
            yield INDENT * bool(number) + text


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]


def _widths(cells: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _longest_word(cell: str) -> str:
    return max(cell.split(), key=len, default="")
