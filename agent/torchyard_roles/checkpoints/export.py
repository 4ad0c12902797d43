"""Export of a model as one file, which torch.load() reads without Torchyard.

    python -m torchyard_roles.checkpoints.export FOLDER FILE

FOLDER is a checkpoint (`step-000000001200`), or a folder of checkpoints, whose newest complete one is used. The file
contains the model's state_dict() with whole tensors on the CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from torchyard_roles.checkpoints import checkpoint_files


def export_model(folder: Path, file: Path) -> int:
    """Writes the model of a checkpoint to `file`, and returns the checkpoint's step.

    Raises:
        checkpoint_files.Damaged: There is no complete checkpoint, or its files cannot be read.
        OSError, RuntimeError: The file cannot be written.
    """
    import torch

    found = _newest(folder)
    state = found.load("model.pt")
    unfinished = file.with_name(f"{checkpoint_files.UNFINISHED}{file.name}-{os.getpid()}")
    try:
        torch.save(state, unfinished)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return found.step


def _newest(folder: Path) -> checkpoint_files.Checkpoint:
    step = checkpoint_files.step_of(folder)
    if step is not None:
        return checkpoint_files.read(folder.parent, step)
    there = checkpoint_files.complete(folder)
    if not there:
        raise checkpoint_files.Damaged(f"{folder} contains no complete checkpoint")
    return there[0]


def main(arguments: Sequence[str]) -> int:
    """Runs the command, and returns its exit code."""
    if len(arguments) != 2:
        print("usage: python -m torchyard_roles.checkpoints.export FOLDER FILE", file=sys.stderr)
        return 2
    folder, file = map(Path, arguments)
    try:
        step = export_model(folder.absolute(), file)
    except (checkpoint_files.Damaged, OSError, RuntimeError) as error:
        print(f"torchyard: {folder} cannot be exported: {error}.", file=sys.stderr)
        return 1
    print(f"torchyard: the model of step {step} is in {file}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
