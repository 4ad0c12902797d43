"""Tests of reading log lines with their times, of reading the last lines of a log, and of merging several logs."""

from __future__ import annotations

import base64
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard_agent.protocol.log_times import Entry
from torchyard_core.launch.runs import log_times, logs
from torchyard_core.launch.runs.log_times import LogTimes
from torchyard_core.launch.runs.logs import LogReader, merge_lines

PIECE = 7


class LogOnAHost:
    """Answers `logs.read` as an agent does for a log that has ended."""

    is_open = True
    host = "gpu-a"

    def __init__(self, log: bytes, times: list[Entry] | None = None):
        self._log = log
        self._times = [(len(log), 1.0)] if times is None else times

    def call(self, method: str, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert method == "logs.read"
        start = params["offset"]
        data = self._log[start : start + params.get("limit", PIECE)]
        end = start + len(data)
        size = len(self._log)
        after = [entry for entry in self._times if entry[0] > start]
        count = sum(entry[0] < end for entry in after) + 1
        return {
            "data": base64.b64encode(data).decode(),
            "next": end,
            "size": size,
            "ended": end == size,
            "times": [list(entry) for entry in after[:count]],
        }


def reader(
    log: bytes, times: list[Entry] | None = None, *, name: str = "worker-0", tail: int | None = None
) -> LogReader:
    return LogReader("run", name, 0, LogOnAHost(log, times), lambda host: pytest.fail("reattached"), tail)


def last_lines(log: bytes, count: int) -> list[str]:
    return [line.text for line in reader(log, tail=count).lines(wait=False)]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("log", ["", "\n", "a", "a\n", "a\nb", "a\nb\n", "\n\n\n", "eins\nzwölf\n\ndrei €\nend"])
def test_the_last_lines_are_those_of_the_whole_log(log: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TAIL_PIECE", piece)
    lines = log.removesuffix("\n").split("\n") if log else []
    for count in range(len(lines) + 2):
        assert last_lines(log.encode(), count) == lines[max(0, len(lines) - count) :], count


def test_a_line_has_the_time_of_its_first_byte() -> None:
    log = reader(b"one\ntwo begins, and ends later\nthree", [(4, 10.0), (8, 20.0), (31, 30.0), (36, 40.5)])
    found = [(line.time, line.text) for line in log.lines(wait=False)]
    assert found == [(10.0, "one"), (20.0, "two begins, and ends later"), (40.5, "three")]


def test_the_last_lines_have_their_times() -> None:
    log = reader(b"one\ntwo\nthree\n", [(4, 10.0), (8, 20.0), (14, 30.0)], tail=2)
    assert [line.time for line in log.lines(wait=False)] == [20.0, 30.0]


def test_lines_of_three_hosts_are_merged_by_time() -> None:
    three = {
        "chief-0": reader(b"first\nfourth\n", [(6, 1.0), (13, 4.0)], name="chief-0"),
        "worker-0": reader(b"second\nfifth\nsame time\n", [(7, 2.0), (13, 5.0), (23, 6.0)], name="worker-0"),
        "worker-1": reader(b"third\nat that time\n", [(6, 3.0), (19, 6.0)], name="worker-1"),
    }
    merged = list(merge_lines((log, log.lines(wait=False)) for log in three.values()))
    assert [(log.replica, line.text) for log, line in merged] == [
        ("chief-0", "first"),
        ("worker-0", "second"),
        ("worker-1", "third"),
        ("chief-0", "fourth"),
        ("worker-0", "fifth"),
        ("worker-0", "same time"),
        ("worker-1", "at that time"),
    ]


LOGS = st.lists(st.lists(st.tuples(st.text("ab", max_size=9), st.integers(0, 3)), max_size=12), min_size=1, max_size=4)
"""Generates logs. Each line has the time since the previous line."""


@given(LOGS)
def test_merging_keeps_each_logs_order_and_sorts_by_time(found: list[list[tuple[str, int]]]) -> None:
    readers = []
    for number, lines in enumerate(found):
        sizes = accumulate(len(text) + 1 for text, _ in lines)
        times = accumulate((float(later) for _, later in lines), initial=1.0)
        next(times)
        log = "".join(f"{text}\n" for text, _ in lines).encode()
        readers.append(reader(log, list(zip(sizes, times, strict=True)), name=str(number)))
    merged = list(merge_lines((log, log.lines(wait=False)) for log in readers))
    for number, lines in enumerate(found):
        assert [line.text for log, line in merged if log.replica == str(number)] == [text for text, _ in lines]
    places = [(line.time, int(log.replica)) for log, line in merged]
    assert all(one <= other for one, other in pairwise(places))


def test_times_by_offset_and_offsets_by_time() -> None:
    times = LogTimes()
    assert (times.time(5), times.since(1.0), times.after(1.0)) == (0.0, None, None)
    times.add([(10, 1.0), (20, 3.0)])
    # The time of a byte does not change once it is known, and times never decrease.
    times.add([(15, 9.0), (30, 2.0), (40, 4.0)])
    assert [times.time(offset) for offset in (0, 9, 10, 20, 30, 39, 99)] == [1.0, 1.0, 3.0, 3.0, 4.0, 4.0, 4.0]
    assert [times.since(time) for time in (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)] == [0, 0, 10, 10, 30, None]
    assert [times.after(time) for time in (0.5, 1.0, 2.0, 3.0, 4.0)] == [0, 10, 10, 30, None]


def test_times_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_times, "MOST_ENTRIES", 64)
    times = LogTimes()
    for number in range(1, 1001):
        times.add([(number, float(number))])
    assert times.time(999) == 1000.0
    assert times.time(1) <= 500.0
    assert len({times.time(offset) for offset in range(1000)}) <= 64
