"""Tests that several logs are merged line by line in a stable order, and that the merged log is loaded page by page."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard_core.launch.runs.log_times import LogTimes
from torchyard_gui.runs.logs import paged_log
from torchyard_gui.runs.logs.log_merge import END, TOP, MergedLog, MissingPages

NAMES = ("worker-0", "worker-1", "worker-2")


def text(name: str, count: int) -> bytes:
    return "".join(f"{name} line {number}\n" for number in range(count)).encode()


@dataclass
class Logs:
    """Several logs and the merged log. Tests add lines with their times."""

    merged: MergedLog
    times: list[LogTimes]
    sizes: list[int]

    def add(self, number: int, time: float, data: bytes) -> None:
        begin, self.sizes[number] = self.sizes[number], self.sizes[number] + len(data)
        self.times[number].add([(self.sizes[number], time)])
        self.merged.put(number, begin, data, self.sizes[number])


def empty(count: int) -> Logs:
    times = [LogTimes() for _ in range(count)]
    return Logs(MergedLog(dict(zip(NAMES, times, strict=False))), times, [0] * count)


def opened(*counts: int) -> Logs:
    """Returns logs with the given numbers of lines, which were written one per second."""
    logs = empty(len(counts))
    for number, count in enumerate(counts):
        for second, line in enumerate(text(NAMES[number], count).splitlines(keepends=True)):
            logs.add(number, float(second), line)
    return logs


def shown(log: MergedLog) -> list[str]:
    return [line.line.text for line in log.lines(TOP, 10_000)]


def test_every_line_of_every_log_is_there_once_and_each_log_stays_in_order() -> None:
    log = opened(300, 300, 20).merged
    lines = log.lines(TOP, 10_000)
    assert len(lines) == 620
    for name, count in zip(NAMES, (300, 300, 20), strict=True):
        own = [line.line.text for line in lines if line.name == name]
        assert own == text(name, count).decode().splitlines()
    assert all(one.place < other.place for one, other in pairwise(lines))


def test_lines_stand_in_the_order_of_their_times_whatever_came_first() -> None:
    logs = empty(3)
    logs.add(1, 20.0, b"second\n")
    logs.add(1, 40.0, b"fourth\nfifth\n")
    logs.add(0, 10.0, b"first\n")
    logs.add(2, 30.0, b"third\n")
    logs.add(0, 40.0, b"at the time of the fourth, in an earlier log\n")
    assert shown(logs.merged) == [
        "first",
        "second",
        "third",
        "at the time of the fourth, in an earlier log",
        "fourth",
        "fifth",
    ]


def test_places_of_lines_stay_as_logs_grow() -> None:
    logs = opened(50, 50)
    before = logs.merged.lines(TOP, 1000)
    logs.add(1, 99.0, b"new\n")
    after = logs.merged.lines(TOP, 1000)
    assert [line.place for line in after[:-1]] == [line.place for line in before]
    assert after[-1].line.text == "new"


def test_a_line_that_was_written_in_two_parts_has_the_time_of_its_first() -> None:
    logs = empty(2)
    logs.add(0, 10.0, b"begun ")
    logs.add(1, 20.0, b"between\n")
    logs.add(0, 30.0, b"and ended\nnext\n")
    assert shown(logs.merged) == ["begun and ended", "between", "next"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3)), max_size=40), st.integers(1, 9))
def test_merging_keeps_each_logs_order_and_pages_agree(writes: list[tuple[int, int, int]], count: int) -> None:
    """Each write adds one to three lines to a log, at the same time as the previous write or later."""
    logs, time, expected = empty(3), 0.0, []
    for position, (number, later, length) in enumerate(writes):
        time += later
        logs.add(number, time, "".join(f"{position}.{line}\n" for line in range(length)).encode())
        expected += [(time, number, position, line) for line in range(length)]
    lines = logs.merged.lines(TOP, 1000)
    assert [line.line.text for line in lines] == [f"{position}.{line}" for _, _, position, line in sorted(expected)]
    for at, line in enumerate(lines):
        assert logs.merged.back(line.place, count) == lines[max(0, at - count)].place
        assert logs.merged.lines(line.place, count) == lines[at : at + count]


@pytest.mark.parametrize("count", [1, 7, 40])
def test_pages_go_back_and_forth(count: int) -> None:
    logs = opened(200, 90, 3)
    logs.add(2, 500.0, b"late\nlater\n")
    log = logs.merged
    lines = log.lines(TOP, 1000)
    assert log.last_page(count) == lines[-count].place
    assert log.back(lines[100].place, count) == lines[100 - count].place
    assert log.back(lines[3].place, 50) == lines[0].place
    assert [line.place for line in log.lines(lines[60].place, count)] == [line.place for line in lines[60 : 60 + count]]
    assert log.lines(END, 5) == []


def test_the_bar_and_the_lines_agree() -> None:
    logs = opened(400, 200)
    logs.add(1, 500.0, b"much more\n" * 300)
    log = logs.merged
    lines = log.lines(TOP, 2000)
    for share in (0.0, 0.1, 0.5, 0.8, 0.95):
        place = log.near(share)
        assert log.share(place) == pytest.approx(share, abs=0.02)
        assert log.lines(place, 1)[0].place in {line.place for line in lines}


def test_what_is_missing_in_all_logs_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_log, "BLOCK", 1000)
    monkeypatch.setattr(paged_log, "LONGEST", 100)
    texts = [text(name, 5000) for name in NAMES]
    logs = empty(3)
    log = logs.merged
    for number, data in enumerate(texts):
        logs.times[number].add([(size, float(size)) for size in range(1000, len(data) + 1000, 1000)])
        log.put(number, 0, b"", len(data))
    with pytest.raises(MissingPages) as missing:
        log.last_page(10)
    assert [number for number, _ in missing.value.pieces] == [0, 1, 2]
    asked = 0
    while True:
        try:
            lines = log.lines(log.last_page(10), 10)
            break
        except MissingPages as more:
            for number, offset in more.pieces:
                asked += 1
                log.put(number, offset, texts[number][offset : offset + 1000], len(texts[number]))
    assert len(lines) == 10
    assert asked <= 6  # Together, the logs have 282 blocks.
