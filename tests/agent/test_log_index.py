"""Tests of the log index: entries, lookups, damaged files, and the maximum size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard_agent import log_index
from torchyard_agent.log_index import LogIndexWriter, read_times
from torchyard_agent.protocol.log_times import Entry, thin

ALL = 1 << 30


class Log:
    """A log with its index, and the keeper's writer of the index."""

    def __init__(self, folder: Path):
        self.path = folder / "worker-0.log"
        self.index = folder / "worker-0.log.times"
        self.writer = LogIndexWriter(str(folder))

    def write(self, data: bytes, at: float) -> None:
        """Appends data as if it were written at the given time, and updates the index."""
        with self.path.open("ab") as file:
            file.write(data)
        os.utime(self.path, (at, at))
        self.writer.update()

    def times(self, begin: int = 0, end: int | None = None, most: int = ALL) -> list[Entry]:
        status = self.path.stat()
        return read_times(str(self.path), begin, status.st_size if end is None else end, status, most)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_each_size_has_the_time_of_the_write_that_led_to_it(log: Log) -> None:
    log.write(b"one\n", 100.125)
    log.write(b"two\n", 200.25)
    log.writer.update()
    assert log.index.read_bytes() == b"               4        100.125\n               8        200.250\n"
    assert log.times() == [(4, 100.125), (8, 200.25)]


def test_a_piece_has_the_entries_of_its_bytes_alone(log: Log) -> None:
    for number in range(1, 101):
        log.write(b"line\n", 1000.0 + number)
    assert log.times(5, 6) == [(10, 1002.0)]
    assert log.times(4, 11) == [(5, 1001.0), (10, 1002.0), (15, 1003.0)]
    assert log.times(495, 500) == [(500, 1100.0)]
    assert log.times(500, 500) == []


def test_bytes_that_the_index_lacks_have_the_time_of_the_last_write(log: Log) -> None:
    log.write(b"one\n", 100.0)
    with log.path.open("ab") as file:
        file.write(b"two\n")
    os.utime(log.path, (300.0, 300.0))
    assert log.times() == [(4, 100.0), (8, 300.0)]
    assert log.times(4) == [(8, 300.0)]


@pytest.mark.parametrize("damage", [b"", b"\0" * 64, b"nonsense of 31 bytes ..........\n" * 2])
def test_a_log_with_a_missing_or_damaged_index_has_one_time(log: Log, damage: bytes) -> None:
    log.write(b"one\ntwo\n", 100.0)
    log.index.write_bytes(damage)
    assert log.times() == [(8, 100.0)]
    log.index.unlink()
    assert log.times() == [(8, 100.0)]


def test_a_torn_entry_is_left_out_and_then_replaced(log: Log) -> None:
    log.write(b"one\n", 100.0)
    with log.index.open("ab") as file:
        file.write(b"               8")
    log.path.write_bytes(b"one\ntwo\n")
    os.utime(log.path, (200.0, 200.0))
    assert log.times() == [(4, 100.0), (8, 200.0)]
    log.write(b"three\n", 300.0)
    assert log.times() == [(4, 100.0), (14, 300.0)]


def test_a_log_that_its_script_truncates_begins_again(log: Log) -> None:
    log.write(b"a long line\n", 100.0)
    log.path.write_bytes(b"")
    log.writer.update()
    log.write(b"new\n", 200.0)
    assert log.times() == [(4, 200.0)]


def test_times_never_decrease_nor_lie_in_the_future(log: Log) -> None:
    log.write(b"one\n", 200.0)
    log.write(b"two\n", 100.0)
    log.write(b"three\n", 1e11)
    times = [time for _, time in log.times()]
    assert times[:2] == [200.0, 200.0]
    assert 200.0 < times[2] < 1e10


def test_an_index_is_bounded_and_its_newest_entries_stay(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "MOST_ENTRIES", 64)
    for number in range(1, 1001):
        log.write(b"line\n", 1000.0 + number)
        assert log.index.stat().st_size <= 64 * log_index.RECORD
    found = log.times()
    assert found == sorted(found)
    assert found[-16:] == [(5 * number, 1000.0 + number) for number in range(985, 1001)]
    # Entries near the beginning of the log are coarser, but must not be merged into a single one.
    assert found[0][0] <= 500
    assert [path.name for path in sorted(log.path.parent.iterdir())] == ["worker-0.log", "worker-0.log.times"]


def test_other_files_get_no_index(log: Log) -> None:
    (log.path.parent / "notes.txt").write_text("mine")
    log.write(b"one\n", 100.0)
    assert {path.name for path in log.path.parent.iterdir()} == {"notes.txt", "worker-0.log", "worker-0.log.times"}


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1000)), max_size=200), st.integers(2, 60))
def test_thinning_keeps_the_newest_half_and_the_order(steps: list[tuple[int, float]], most: int) -> None:
    size, time = 0, 1e9
    entries: list[Entry] = []
    for more, later in steps:
        size, time = size + more, time + later
        entries.append((size, time))
    kept = thin(entries, most)
    assert len(kept) <= max(most, 0)
    assert kept == sorted(set(kept) & set(entries))
    assert kept[-(most // 2) :] == entries[-(most // 2) :]
