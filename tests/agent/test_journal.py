"""Tests of reading a journal that grows, and of continuing after the last event that a client has received."""

from __future__ import annotations

import json
from pathlib import Path

from torchyard_agent.journal import JournalReader, after


def line(seq: int, epoch: str = "e1") -> str:
    return json.dumps({"epoch": epoch, "seq": seq, "time": "t", "event": "run_state", "state": "running"}) + "\n"


def test_each_read_returns_the_new_events(tmp_path: Path) -> None:
    reader = JournalReader(str(tmp_path))
    assert reader.read() == []

    journal = tmp_path / "journal.jsonl"
    journal.write_text(line(1) + line(2))
    assert [event["seq"] for event in reader.read()] == [1, 2]

    with journal.open("a") as file:
        file.write(line(3)[:10])
        file.flush()
        assert reader.read() == []
        file.write(line(3)[10:])
    assert [event["seq"] for event in reader.read()] == [3]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    whole = (line(1) + line(2)).encode()
    (tmp_path / "journal.jsonl").write_bytes(
        whole[:-20] + bytes(20) + b"\n[1]\n7\n{}\n\xff\xfe\n" + line(3).encode() + bytes(100)
    )

    assert [event["seq"] for event in JournalReader(str(tmp_path)).read()] == [1, 3]


def test_a_client_gets_the_events_that_it_has_not_seen() -> None:
    events = [json.loads(line(seq)) for seq in (1, 2, 3)]

    assert [event["seq"] for event in after(events, ["e1", 2])] == [3]
    assert after(events, ["e1", 3]) == []
    assert after(events, None) == events


def test_a_client_that_knows_another_epoch_gets_everything() -> None:
    events = [json.loads(line(seq, "e2")) for seq in (1, 2)]

    assert after(events, ["e1", 1]) == events
