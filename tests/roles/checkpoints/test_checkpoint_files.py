"""Tests of checkpoint files: atomic writes, pruning to the three newest, and removal of only those unfinished saves
that are old.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from torchyard_roles.checkpoints import checkpoint_files

pytestmark = pytest.mark.train

ABOUT = {"epoch": 0, "fingerprint": {}, "strategy": "all_reduce"}


def write(root: Path, step: int, value: float = 0.0) -> None:
    import torch

    contents = {"model.pt": {"weight": torch.full((4,), value)}, "optimizer.pt": {}, "extra.pt": {}}
    checkpoint_files.write(root, step, contents, ABOUT)


def test_the_newest_three_stay(tmp_path: Path) -> None:
    for step in (5, 40, 100, 200, 1000):
        write(tmp_path, step)
        checkpoint_files.prune(tmp_path)
    assert [one.step for one in checkpoint_files.complete(tmp_path)] == [1000, 200, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        checkpoint_files.name_of(step) for step in (100, 200, 1000)
    ]


def test_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 7, 1.0)
    write(tmp_path, 7, 2.0)
    (only,) = checkpoint_files.complete(tmp_path)
    assert only.load("model.pt")["weight"].tolist() == [2.0] * 4
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unfinished_save_is_deleted_only_after_an_hour_without_writes(tmp_path: Path) -> None:
    old, young = tmp_path / ".saving-step-000000000001-a-1", tmp_path / ".saving-step-000000000002-b-2"
    for folder in (old, young):
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"half")
    long_ago = time.time() - checkpoint_files.UNFINISHED_MAX_AGE_S - 60
    for path in (old / "model.pt", old):
        os.utime(path, (long_ago, long_ago))
    write(tmp_path, 3)
    checkpoint_files.prune(tmp_path)
    assert not old.exists()
    assert young.exists()


def test_loading_runs_no_code_of_the_files(tmp_path: Path) -> None:
    import torch

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"weight": Evil()}, tmp_path / "model.pt")
    with pytest.raises(checkpoint_files.Damaged):
        checkpoint_files.load(tmp_path / "model.pt")
    assert not (tmp_path / "ran").exists()


def test_parts_of_other_steps_are_cleared_away(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint_files.write_part(tmp_path, "worker-0.0", step, {"step": step})
    checkpoint_files.prune_parts(tmp_path, "worker-0.0", [2, 3])
    assert checkpoint_files.part_steps(tmp_path, "worker-0.0") == [3, 2]
    assert checkpoint_files.read_part(tmp_path, "worker-0.0", 3) == {"step": 3}
    assert checkpoint_files.read_part(tmp_path, "worker-0.0", 1) is None


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_server_s_newest_part_is_a_checkpoint_s_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    def none(*_: object) -> None:
        raise OSError("this file system has no hard links")

    if not hard_links:
        monkeypatch.setattr(os, "link", none)
    for step in (10, 20):
        checkpoint_files.write_part(tmp_path, "ps-0", None, {"step": step})
        checkpoint_files.keep_newest_part(tmp_path, "ps-0", step)
    checkpoint_files.write_part(tmp_path, "ps-0", None, {"step": 25})
    assert [checkpoint_files.read_part(tmp_path, "ps-0", step) for step in (10, 20, None)] == [
        {"step": 10},
        {"step": 20},
        {"step": 25},
    ]
    left = checkpoint_files.part_path(tmp_path, "ps-0", 30).with_name(
        ".saving-step-30.pt-1"
    )  # A killed server left this file.
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    checkpoint_files.prune_parts(tmp_path, "ps-0", {20})
    assert sorted(path.name for path in left.parent.iterdir()) == ["newest.pt", "step-000000000020.pt"]


def test_what_cannot_be_read_back_as_plain_data_is_named_with_its_place() -> None:
    import torch

    from torchyard_roles.checkpoints.training_state import copied
    from torchyard_roles.errors import UsageProblem

    weight = torch.ones(2, requires_grad=True)
    copy = copied({"a": [weight, 1.5], "b": (None, {"c"})}, "state")
    with torch.no_grad():
        weight.zero_()
    assert copy["a"][0].tolist() == [1.0, 1.0]
    with pytest.raises(UsageProblem, match=r"state\['f'\]\[1\] is a function, which a checkpoint cannot hold"):
        copied({"f": [0, lambda: None]}, "state")
