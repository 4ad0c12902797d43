"""Tests of the order of versions, and of the file that records which agent is installed on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_agent import installed_version
from torchyard_agent.protocol.version_order import version_order


def test_versions_have_an_order() -> None:
    rising = ["no version", "0.0.9", "0.1.0.dev3", "0.1", "0.9.1", "0.10.0rc1", "0.10.0", "1.0.0", "1.0.1"]
    mixed = rising[::2] + rising[1::2]
    assert sorted(mixed, key=version_order) == rising
    assert (
        version_order("0.1") == version_order("0.1.0") == version_order("0.1.0+local") == version_order("0.1.0.post1")
    )


@pytest.mark.parametrize(("noted", "is_newer"), [("0.0.9", False), ("0.1.0", False), ("0.2.0", True)])
def test_a_newer_agent_is_found_if_its_archive_exists(tmp_path: Path, noted: str, is_newer: bool) -> None:
    sha256 = "a" * 64
    (tmp_path / "hosts" / "gpu-a").mkdir(parents=True)
    installed_version.note(str(tmp_path), "gpu-a", noted, sha256)
    assert installed_version.newer_than(str(tmp_path), "gpu-a", "0.1.0") is None

    main = tmp_path / "store" / sha256 / "torchyard_agent" / "__main__.py"
    main.parent.mkdir(parents=True)
    main.touch()

    assert installed_version.newer_than(str(tmp_path), "gpu-a", "0.1.0") == (sha256 if is_newer else None)
    assert installed_version.newer_than(str(tmp_path), "gpu-b", "0.1.0") is None


def test_an_unreadable_note_is_ignored(tmp_path: Path) -> None:
    note = tmp_path / "hosts" / "gpu-a" / "agent.json"
    note.parent.mkdir(parents=True)
    for text in ("", "{", "[]", '{"version": 3}', "null"):
        note.write_text(text)
        assert installed_version.newer_than(str(tmp_path), "gpu-a", "0.1.0") is None
