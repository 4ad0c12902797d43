"""Tests of finding the lines of an arbitrarily long log from its blocks."""

from __future__ import annotations

import pytest

from torchyard_gui.runs.logs import paged_log
from torchyard_gui.runs.logs.paged_log import LONGEST, Line, MissingPage, PagedLog, text_of

TEXT = "".join(f"line {number} of a log\n" for number in range(2000)).encode()


def filled(data: bytes, *, block: int = 0) -> PagedLog:
    pieces = PagedLog()
    pieces.put(0, data, len(data))
    return pieces


def test_every_line_is_found_forwards_and_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_log, "BLOCK", 1000)
    pieces = filled(TEXT)
    lines = pieces.lines(0, 5000)
    assert [line.text for line in lines] == TEXT.decode().splitlines()
    begins = [line.begin for line in lines]
    assert pieces.last_page(10) == begins[-10]
    assert pieces.back(begins[500], 7) == begins[493]
    assert pieces.back(begins[3], 100) == 0
    assert all(pieces.begin_of_line(line.end - 1) == line.begin for line in lines)


def test_only_the_pieces_around_what_is_shown_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_log, "BLOCK", 10_000)
    monkeypatch.setattr(paged_log, "LONGEST", 100)
    pieces = PagedLog()
    pieces.size = len(TEXT)
    asked = []
    while True:
        try:
            begin = pieces.last_page(20)
            break
        except MissingPage as missing:
            asked.append(missing.offset)
            pieces.put(missing.offset, TEXT[missing.offset : missing.offset + 10_000], len(TEXT))
    assert pieces.lines(begin, 20)[-1].text == "line 1999 of a log"
    # Only the last block is requested, because the log may have millions of lines.
    assert asked == [len(TEXT) // 10_000 * 10_000]


def test_a_log_that_grows_goes_on_where_it_was() -> None:
    pieces = PagedLog()
    pieces.put(0, b"one\ntw", 6)
    assert [line.text for line in pieces.lines(0, 9)] == ["one", "tw"]
    pieces.put(6, b"o\nthree\n", 14)
    assert [line.text for line in pieces.lines(0, 9)] == ["one", "two", "three"]
    pieces.put(1000, b"far away", 1008)  # Data that are not adjacent to loaded data are ignored.
    with pytest.raises(MissingPage):
        pieces.lines(14, 1)


def test_the_least_used_pieces_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_log, "BLOCK", 10)
    monkeypatch.setattr(paged_log, "KEPT", 3)
    pieces = PagedLog()
    for number in range(5):
        pieces.put(number * 10, b"012345678\n", 50)
    with pytest.raises(MissingPage):
        pieces.lines(0, 1)
    assert len(pieces.lines(20, 3)) == 3


def test_a_line_without_end_is_shown_in_parts() -> None:
    pieces = filled(b"x" * (3 * LONGEST) + b"\nend\n")
    lines = pieces.lines(0, 10)
    assert [len(line.text) for line in lines] == [LONGEST, LONGEST, LONGEST, 0, 3]
    assert lines[-1] == Line(3 * LONGEST + 1, 3 * LONGEST + 5, "end")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[31mred\x1b[0m\n", "red"),
        (b" 10%\r 50%\r100%\n", "100%"),
        (b"windows\r\n", "windows"),
        ("zwölf €\n".encode(), "zwölf €"),
        (b"half a \xe2\x82", "half a \ufffd"),
        (b"a\tb\n", "a       b"),
    ],
)
def test_lines_read_as_on_a_terminal(data: bytes, text: str) -> None:
    assert text_of(data) == text
