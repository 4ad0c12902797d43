"""Tests that a killed training run resumes from its newest complete checkpoint.

The results must be the same as without the interruption.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.roles import join_stores
from tests.roles.checkpointed import PROGRAM, Gang
from tests.roles.processes import Start
from torchyard_roles.checkpoints import checkpoint_files

pytestmark = pytest.mark.train

EPOCHS = 6


@pytest.fixture
def store() -> Iterator[join_stores.Served]:
    served = join_stores.serve_in_a_process()
    yield served
    served.end()


def uninterrupted(gang: Gang, program: Path = PROGRAM, how: Sequence[str] = ()) -> list[dict[int, str]]:
    gang.launch(EPOCHS, 0, *how, every_s=600, program=program)
    for code, output in gang.ended():
        assert code == 0, output
    return [gang.losses(rank) for rank in range(gang.size)]


def killed_somewhere_and_resumed(
    gang: Gang, kills: int, seed: int, program: Path = PROGRAM, how: Sequence[str] = ()
) -> list[str]:
    """Kills the run several times, each time after a new checkpoint, at a random time during a step. Then lets the run
    finish.
    """
    dice = random.Random(seed)
    for _ in range(kills):
        enough = max(checkpoint_files.steps(gang.checkpoints), default=0) + dice.randint(1, 12)
        gang.launch(EPOCHS, 0.02, *how, every_s=0.1, program=program)
        gang.wait_for(lambda: max(checkpoint_files.steps(gang.checkpoints), default=0) >= enough, "a save")  # noqa: B023  # The lambda is called only in this iteration.
        time.sleep(dice.uniform(0, 0.1))  # The kill may come during a step or during a save.
        gang.kill()
    gang.launch(EPOCHS, 0, *how, every_s=600, program=program)
    outputs = []
    for code, output in gang.ended():
        assert code == 0, output
        outputs.append(output)
    return outputs


def test_one_process_killed_twice_has_the_losses_of_one_that_was_not(start: Start, tmp_path: Path) -> None:
    whole = uninterrupted(Gang(start, tmp_path / "whole", 1))
    gang = Gang(start, tmp_path / "killed", 1)
    (output,) = killed_somewhere_and_resumed(gang, kills=2, seed=1)
    assert "torchyard: resumed from" in output
    assert "epochs done" in output
    assert gang.losses() == whole[0]
    assert len(whole[0]) == EPOCHS * 15


def test_two_ranks_over_gloo_that_were_killed_have_the_losses_of_two_that_were_not(
    start: Start, tmp_path: Path, store: join_stores.Served
) -> None:
    whole = uninterrupted(Gang(start, tmp_path / "whole", 2))
    gang = Gang(start, tmp_path / "killed", 2, store)
    outputs = killed_somewhere_and_resumed(gang, kills=1, seed=2)
    assert not any("saved no part" in output for output in outputs)
    for rank in range(2):
        assert gang.losses(rank) == whole[rank]
        assert len(whole[rank]) == EPOCHS * 8


@pytest.mark.parametrize(("size", "how"), [(1, "calls"), (2, "lists"), (2, "calls")])
def test_two_pairs_that_take_turns_go_on_exactly(
    start: Start, tmp_path: Path, store: join_stores.Served, size: int, how: str
) -> None:
    program = PROGRAM.with_name("resumable_pairs.py")
    whole = uninterrupted(Gang(start, tmp_path / "whole", size), program, [how])
    gang = Gang(start, tmp_path / "killed", size, store)
    killed_somewhere_and_resumed(gang, kills=1, seed=3, program=program, how=[how])
    for rank in range(size):
        assert gang.losses(rank) == whole[rank]
        assert len(whole[rank]) == EPOCHS * (15 if size == 1 else 8)


def test_what_is_cut_short_or_spoilt_is_passed_over_and_never_loaded(start: Start, tmp_path: Path) -> None:
    gang = Gang(start, tmp_path / "run", 1)
    gang.launch(2, 0.02, every_s=0.1)
    assert gang.ended()[0][0] == 0
    newest, second, third = checkpoint_files.complete(gang.checkpoints)
    for name in (*checkpoint_files.FILES, checkpoint_files.ABOUT):
        shutil.copytree(newest.folder, tmp_path / name / newest.folder.name)
        cut = tmp_path / name / newest.folder.name / name
        cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        assert checkpoint_files.complete(tmp_path / name) == []
    (newest.folder / "optimizer.pt").write_bytes((newest.folder / "optimizer.pt").read_bytes()[:-1])
    (second.folder / "model.pt").write_bytes(b"\0" * (second.folder / "model.pt").stat().st_size)
    gang.launch(2, 0, every_s=600)
    ((code, output),) = gang.ended()
    assert code == 0, output
    assert f"torchyard: the checkpoint {newest.folder} is ignored: optimizer.pt has" in output
    assert f"torchyard: the checkpoint {second.folder} is ignored: model.pt cannot be read" in output
    assert f"resumed from {third.folder}" in output
    # The checkpoint that was ignored has been saved again and is complete.
    assert checkpoint_files.complete(gang.checkpoints)[0].step == newest.step


def test_another_models_checkpoint_is_refused_with_its_first_difference_on_all_ranks(
    start: Start, tmp_path: Path, store: join_stores.Served
) -> None:
    gang = Gang(start, tmp_path / "run", 1)
    gang.launch(1, 0)
    assert gang.ended()[0][0] == 0
    other = tmp_path / "other.py"
    other.write_text(
        "import torch, torchyard_roles as ty\n"
        "cluster = ty.join()\n"
        "model = torch.nn.Sequential(torch.nn.Linear(6, 17), torch.nn.Linear(17, 1))\n"
        "cluster.distribute(model, torch.optim.Adam(model.parameters()))\n"
    )
    pair = Gang(start, gang.folder, 2, store)
    pair.launch(program=other)
    for code, output in pair.ended():
        assert code == 1
        assert "UsageProblem" in output
        assert (
            "belongs to another model: it has 0.weight (float32, 16×6) where the model has 0.weight (float32, 17×6)"
            in output
        )


BY_HAND = """
import torch, torchyard_roles as ty
cluster = ty.join()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters())
model, optimizer = cluster.distribute(model, optimizer)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for number, batch in enumerate(cluster.loader(torch.ones(8, 1), batch_size=1, shuffle=True, seed=3)):
    model(batch).sum().backward()
    optimizer.step()
    scheduler.step()
    if ASKS and number == 2:
        cluster.checkpoint(scheduler=scheduler, now=True)
    if DIES and number == 5:
        import os, pathlib, time
        while not pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"], "step-000000000003").exists():
            time.sleep(0.01)
        os._exit(9)
if ASKS and not DIES:
    cluster.checkpoint(scheduler=scheduler)
print("steps", scheduler.last_epoch)
"""


def test_by_hand_it_checkpoints_only_if_the_script_asks_and_a_folder_is_named(start: Start, tmp_path: Path) -> None:
    def run(asks: bool, dies: bool, **environment: str) -> str:
        process = start("-c", f"ASKS, DIES = {asks}, {dies}\n{BY_HAND}", environment=environment)
        return process.communicate(timeout=60)[0]

    named = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "kept")}
    assert run(asks=True, dies=False) == "steps 8\n"
    assert run(asks=False, dies=False, **named) == "steps 8\n"
    assert checkpoint_files.steps(tmp_path / "kept") == []
    run(asks=True, dies=True, **named)
    assert [one.step for one in checkpoint_files.complete(tmp_path / "kept")] == [3]
    output = run(asks=True, dies=False, **named)
    assert "3 steps, 0 epochs done" in output
    assert [one.step for one in checkpoint_files.complete(tmp_path / "kept")] == [8, 6, 3]


FAILS_ONCE = """
import errno, torch, torchyard_roles as ty
from torchyard_roles.checkpoints import checkpoint_files

write = checkpoint_files.write

def fails(*arguments):
    checkpoint_files.write = write
    raise OSError(errno.ENOSPC, "No space left on device")

checkpoint_files.write = fails
cluster = ty.join()
model = torch.nn.Linear(1, 1)
model, optimizer = cluster.distribute(model, torch.optim.Adam(model.parameters()))
for number, batch in enumerate(cluster.loader(torch.ones(8, 1), batch_size=1, shuffle=True, seed=3)):
    model(batch).sum().backward()
    optimizer.step()
    if number == 7:
        cluster.checkpoint(now=True)
"""


def test_a_last_checkpoint_that_could_not_be_saved_is_tried_again_at_the_end(start: Start, tmp_path: Path) -> None:
    process = start("-c", FAILS_ONCE, environment={"TORCHYARD_CHECKPOINTS": str(tmp_path)})
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "the checkpoint of step 8 could not be saved" in output
    assert [(one.step, one.about["final"]) for one in checkpoint_files.complete(tmp_path)] == [(8, True)]


@pytest.mark.lab
def test_on_a_full_disk_the_old_checkpoints_stay_and_training_goes_on(start: Start, tmp_path: Path) -> None:
    gang = Gang(start, tmp_path / "run", 1)
    gang.checkpoints.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "small", str(gang.checkpoints)]
    subprocess.run(mount, check=True, timeout=60)
    try:
        gang.launch(3, 0.03, every_s=0.1)
        gang.wait_for(lambda: len(checkpoint_files.steps(gang.checkpoints)) >= 2, "two checkpoints")
        filler = gang.checkpoints / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"\0" * 4096):
                pass
        before = [one.step for one in checkpoint_files.complete(gang.checkpoints)]
        steps = len(gang.losses())
        gang.wait_for(lambda: len(gang.losses()) > steps + 12, "steps after the disk was full")
        assert set(before) <= {one.step for one in checkpoint_files.complete(gang.checkpoints)} | set(before[2:])
        filler.unlink()
        ((code, output),) = gang.ended()
        assert code == 0, output
        assert re.search(r"torchyard: .* could not (be saved|save its own part).*the disk is full\.", output), output
        assert "trained to the end" in output
        # Once the disk has free space, saving succeeds.
        assert checkpoint_files.complete(gang.checkpoints)[0].step == 45
        assert not list(gang.checkpoints.glob(".saving-*"))
    finally:
        subprocess.run(["umount", "-l", str(gang.checkpoints)], check=True, timeout=60)
