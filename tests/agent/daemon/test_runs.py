"""The runs of a host, as the daemon finds them on its disk."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.daemon.runs import Runs
from torchyard_agent.protocol import places


@pytest.mark.parametrize("record", [b"", b"[1]", b"7", b'{"record": 5}', b"\xff\x00" * 100])
@pytest.mark.parametrize("journal", [b"", b"\x00" * 500 + b"\n", b"[1]\n"])
def test_a_run_that_a_power_cut_has_damaged_hides_no_other(tmp_path: Path, record: bytes, journal: bytes) -> None:
    for run_id in ("1-damaged", "2-whole"):
        Path(places.run_dir(str(tmp_path), "gpu-a", run_id)).mkdir(parents=True)
    damaged, whole = (Path(places.run_dir(str(tmp_path), "gpu-a", name)) for name in ("1-damaged", "2-whole"))
    (damaged / "run.json").write_bytes(record)
    (damaged / "journal.jsonl").write_bytes(journal)
    (whole / "run.json").write_text(json.dumps({"name": "digits", "record": {"primary": "gpu-a"}}))

    async def listed() -> list[tuple[str, str, str]]:
        found = await Runs(str(tmp_path), "gpu-a").list()
        return [(line["run_id"], line["name"], line["state"]) for line in found]

    assert asyncio.run(listed()) == [("1-damaged", "", "draft"), ("2-whole", "digits", "draft")]


class LeftMeanwhile(Runs):
    """As if a run's keeper ended just when it is asked for."""

    async def keeper(self, run_id: str) -> Any:
        end = {"event": "run_ended", "state": "stopped", "reason": "by kim", "replicas": []}
        event = {"epoch": "e", "seq": 1, "time": "2026-11-22T12:00:00Z", **end}
        (Path(self.folder(run_id)) / "journal.jsonl").write_text(json.dumps(event) + "\n")
        return None


def test_a_run_whose_keeper_leaves_while_it_is_asked_for_has_ended_as_its_keeper_wrote(tmp_path: Path) -> None:
    Path(places.run_dir(str(tmp_path), "gpu-a", "1-run")).mkdir(parents=True)
    (told,) = asyncio.run(LeftMeanwhile(str(tmp_path), "gpu-a").list())
    assert (told["state"], told["alive"]) == ("stopped", False)
