"""Several logs are merged into whole lines in a stable order, loaded page by page."""

from __future__ import annotations

from itertools import pairwise

import pytest

from torchyard_gui.runs.logs import paged_log
from torchyard_gui.runs.logs.log_merge import END, TOP, MergedLog, MissingPages

NAMES = ("worker-0", "worker-1", "worker-2")


def text(name: str, count: int) -> bytes:
    return "".join(f"{name} line {number}\n" for number in range(count)).encode()


def opened(*counts: int) -> MergedLog:
    log = MergedLog(NAMES[: len(counts)])
    for number, count in enumerate(counts):
        data = text(NAMES[number], count)
        log.open(number, len(data))
        log.put(number, 0, data, len(data))
    return log


def add(log: MergedLog, number: int, begin: int, data: bytes) -> int:
    log.grow(number, begin, data, begin + len(data))
    return begin + len(data)


def test_every_line_of_every_log_is_there_once_and_each_log_stays_in_order() -> None:
    log = opened(300, 300, 20)
    lines = log.lines(TOP, 10_000)
    assert len(lines) == 620
    for name, count in zip(NAMES, (300, 300, 20), strict=True):
        own = [line.line.text for line in lines if line.name == name]
        assert own == text(name, count).decode().splitlines()
    assert all(one.place < other.place for one, other in pairwise(lines))


def test_what_was_there_before_stands_beside_each_other_by_its_position() -> None:
    lines = opened(300, 300).lines(TOP, 600)
    names = [line.name for line in lines]
    # The lines of trainers alternate: no log's past is grouped together.
    assert max(abs(names[:at].count("worker-0") - names[:at].count("worker-1")) for at in range(600)) <= 2


def test_what_comes_later_stands_at_the_end_in_the_order_it_came() -> None:
    log = opened(50, 50)
    ends = [len(text(name, 50)) for name in NAMES[:2]]
    ends[1] = add(log, 1, ends[1], b"first\n")
    ends[0] = add(log, 0, ends[0], b"second\nthird\n")
    ends[1] = add(log, 1, ends[1], b"fourth\n")
    before = log.lines(TOP, 1000)
    assert [line.line.text for line in before[-4:]] == ["first", "second", "third", "fourth"]
    add(log, 0, ends[0], b"fifth\n")
    after = log.lines(TOP, 1000)
    assert [line.place for line in after[:-1]] == [line.place for line in before]


def test_a_log_that_begins_later_stands_at_the_end() -> None:
    log = opened(50)
    log = MergedLog(NAMES[:2])
    data = text("worker-0", 50)
    log.open(0, len(data))
    log.put(0, 0, data, len(data))
    add(log, 1, 0, b"here too\n")
    assert log.lines(TOP, 100)[-1].line.text == "here too"


@pytest.mark.parametrize("count", [1, 7, 40])
def test_pages_go_back_and_forth(count: int) -> None:
    log = opened(200, 90, 3)
    add(log, 2, len(text("worker-2", 3)), b"late\nlater\n")
    lines = log.lines(TOP, 1000)
    assert log.last_page(count) == lines[-count].place
    assert log.back(lines[100].place, count) == lines[100 - count].place
    assert log.back(lines[3].place, 50) == lines[0].place
    assert [line.place for line in log.lines(lines[60].place, count)] == [line.place for line in lines[60 : 60 + count]]
    assert log.lines(END, 5) == []


def test_the_bar_and_the_lines_agree() -> None:
    log = opened(400, 200)
    add(log, 1, len(text("worker-1", 200)), b"much more\n" * 300)
    lines = log.lines(TOP, 2000)
    for share in (0.0, 0.1, 0.5, 0.8, 0.95):
        place = log.near(share)
        assert log.share(place) == pytest.approx(share, abs=0.02)
        assert log.lines(place, 1)[0].place in {line.place for line in lines}


def test_what_is_missing_in_all_logs_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_log, "BLOCK", 1000)
    monkeypatch.setattr(paged_log, "LONGEST", 100)
    log = MergedLog(NAMES)
    texts = [text(name, 5000) for name in NAMES]
    for number, data in enumerate(texts):
        log.open(number, len(data))
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
    assert asked <= 6  # of more than 300 pieces
