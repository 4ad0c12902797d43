"""Sample checkpoints in the format of `torchyard_roles`, with arbitrary contents."""

from __future__ import annotations

import json
from pathlib import Path


def folder_of(run_dir: Path) -> Path:
    return run_dir / "outputs" / "checkpoints"


def save(folder: Path, step: int, size: int = 1000, files: tuple[str, ...] = ("model.pt", "optimizer.pt")) -> str:
    """Creates a complete checkpoint in `folder`, and returns the name of the checkpoint."""
    name = f"step-{step:012d}"
    scratch = folder / f".saving-{name}"
    scratch.mkdir(parents=True)
    sizes = {}
    for number, file in enumerate(files):
        data = bytes((number * 7 + step * 13 + index // 4096) % 251 for index in range(0, size, 4096)) * 4096
        (scratch / file).write_bytes(data[:size])
        sizes[file] = min(size, len(data))
    about = {"step": step, "epoch": 0, "fingerprint": "x", "strategy": "none", "files": sizes, "time": ""}
    (scratch / "checkpoint.json").write_text(json.dumps(about))
    scratch.rename(folder / name)
    return name


def same(one: Path, other: Path) -> bool:
    """Returns whether two checkpoints have the same files with the same contents."""
    files = sorted(path.name for path in one.iterdir())
    return files == sorted(path.name for path in other.iterdir()) and all(
        (one / file).read_bytes() == (other / file).read_bytes() for file in files
    )


def there(folder: Path) -> list[str]:
    """Returns the names of the checkpoints in a folder, oldest first."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
