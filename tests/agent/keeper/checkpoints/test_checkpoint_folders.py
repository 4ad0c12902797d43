"""Tests of reading checkpoint folders: a sharded checkpoint of another run, and file names that leave the folder."""

from __future__ import annotations

from pathlib import Path

from tests.agent.keeper.checkpoints.sample_checkpoints import folder_of, same, save
from torchyard_agent.keeper.checkpoints import checkpoint_folders

SHARDED = (".metadata", "__0_0.distcp", "__1_0.distcp", "optimizer.pt", "extra.pt")


def test_a_run_resumes_from_the_sharded_checkpoint_of_another_run(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    save(folder_of(old), 5)
    name = save(folder_of(old), 7, files=SHARDED)

    assert checkpoint_folders.seed(str(old), str(new)) == name

    assert same(folder_of(old) / name, folder_of(new) / name)
    (folder_of(old) / name / "__1_0.distcp").unlink()
    assert checkpoint_folders.newest(str(folder_of(old))) == "step-000000000005"


def test_names_that_lead_out_of_the_folder_are_no_checkpoint_files() -> None:
    for name in ("../model.pt", "/model.pt", ".metadata/x", ".metadatas", ".", "..", ".ssh"):
        assert not checkpoint_folders.is_file_name(name), name
