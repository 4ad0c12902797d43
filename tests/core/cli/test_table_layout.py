"""Tests of tables on terminals of any width."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard_core.cli.output import table
from torchyard_core.cli.table_layout import lay_out

HEADINGS = ("ID", "NAME", "STATE", "HOSTS", "RESTART OF", "REASON")
ROWS = [
    ["20261123-091502-3f9c", "digits", "failed", "gpu-a gpu-b", "-", "worker-0 on gpu-a: exited with 1"],
    ["20261122-181502-a1b2", "digits", "running", "gpu-c", "-", ""],
]


def shown(width: int | None) -> list[str]:
    titles, lines = lay_out(HEADINGS, ROWS, width)
    return [*titles, *lines]


def test_a_table_that_fits_has_one_line_per_row() -> None:
    assert shown(200) == shown(None)
    assert len(shown(None)) == 3
    assert shown(None)[0].split() == ["ID", "NAME", "STATE", "HOSTS", "RESTART", "OF", "REASON"]


def test_cells_are_wrapped_between_words_and_empty_columns_left_out() -> None:
    assert shown(76) == [
        "ID                    NAME    STATE    HOSTS        REASON",
        "20261123-091502-3f9c  digits  failed   gpu-a gpu-b  worker-0 on gpu-a:",
        "                                                    exited with 1",
        "20261122-181502-a1b2  digits  running  gpu-c",
    ]


def test_rows_continue_on_indented_lines_where_wrapping_is_not_enough() -> None:
    assert shown(40) == [
        "ID                    NAME    STATE",
        "    HOSTS",
        "    REASON",
        "20261123-091502-3f9c  digits  failed",
        "    gpu-a gpu-b",
        "    worker-0 on gpu-a: exited with 1",
        "20261122-181502-a1b2  digits  running",
        "    gpu-c",
    ]


CELL = st.lists(st.text("ab", min_size=1, max_size=9), max_size=4).map(" ".join)


@given(st.integers(14, 90), st.lists(st.lists(CELL, min_size=4, max_size=4), max_size=4))
def test_no_line_is_too_long_and_no_word_is_lost(width: int, rows: list[list[str]]) -> None:
    titles, lines = lay_out(("ID", "A NAME", "B", "LAST"), rows, width)
    assert all(len(line) <= width for line in (*titles, *lines))
    words = [word for row in rows for cell in row for word in cell.split()]
    assert sorted(word for line in lines for word in line.split()) == sorted(words)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_only_a_terminal_limits_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    table(HEADINGS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines) == 3) != is_terminal
    assert (max(map(len, lines)) <= 60) == is_terminal
