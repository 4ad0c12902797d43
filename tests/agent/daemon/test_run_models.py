"""Tests of the models that the daemon reads from a run's checkpoints and that desktops download as one file."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

from tests.agent.keeper.checkpoints.sample_checkpoints import folder_of, save
from torchyard_agent.daemon import run_models
from torchyard_agent.daemon.run_models import RunModels, list_checkpoints
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError

RUN = "20261123-101010-aaaa"
ARCHIVE = Path(run_models.__file__).parents[2]


class Desktop:
    """A fake desktop connection without a socket. A test can close it."""

    def __init__(self) -> None:
        self.on_close: list[Any] = []


class Host:
    """The daemon's methods that serve models, on a host with one run."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = Path(paths.run_dir(str(folder), "gpu-a", RUN))
        self.run_dir.mkdir(parents=True)
        (self.run_dir / "keeper.log").touch()
        self.checkpoints = folder_of(self.run_dir)
        self.desktop: Any = Desktop()

    def ask(self, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
        """Sends the requests of one desktop one after another, and returns the answers."""

        async def answers() -> list[Any]:
            methods = RunModels(Runs(str(self.run_dir.parents[3]), "gpu-a"), str(ARCHIVE)).table()
            return [await methods[name](self.desktop, {"run_id": RUN, **params}) for name, params in calls]

        return asyncio.run(answers())

    def export(self, step: int, **more: Any) -> Path:
        request = {"step": step, "export": "x", "python": sys.executable, "setup": [], "env": {}, **more}
        [answer] = self.ask(("model.export", request))
        file = self.run_dir / answer["path"]
        assert file.stat().st_size == answer["size"]
        return file


def save_sharded(folder: Path, step: int, model: dict[str, torch.Tensor]) -> Path:
    """Saves a complete sharded checkpoint of one rank."""
    place = folder / f"step-{step:012d}"
    tensors = {f"model.{name}": value for name, value in model.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save(tensors, storage_writer=checkpoint.FileSystemWriter(place), no_dist=True)
    for name in ("optimizer.pt", "extra.pt"):
        torch.save({}, place / name)
    about = {"step": step, "files": {path.name: path.stat().st_size for path in place.iterdir()}}
    (place / "checkpoint.json").write_text(json.dumps(about))
    return place


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_unsharded_model_is_the_file_of_its_checkpoint_and_goes_with_its_desktop(host: Host) -> None:
    name = save(host.checkpoints, 5)
    file = host.export(5)
    assert file.read_bytes() == (host.checkpoints / name / "model.pt").read_bytes()
    for callback in host.desktop.on_close:
        callback()
    assert not file.exists()
    assert (host.checkpoints / name / "model.pt").exists()


def test_a_sharded_model_is_put_together_by_the_programs_interpreter(host: Host) -> None:
    model = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}
    save_sharded(host.checkpoints, 7, model)
    loaded = torch.load(host.export(7, setup=["export SEEN=1"]), weights_only=True)
    torch.testing.assert_close(loaded, model)


def test_a_shared_folder_is_named_by_the_desktop(host: Host, tmp_path: Path) -> None:
    name = save(tmp_path / "shared", 3)
    file = host.export(3, folder=str(tmp_path / "shared"))
    assert file.read_bytes() == (tmp_path / "shared" / name / "model.pt").read_bytes()


def test_a_removed_export_leaves_no_file(host: Host) -> None:
    save(host.checkpoints, 5)
    request = {"step": 5, "export": "x", "python": None, "setup": [], "env": {}}
    answer, _ = host.ask(("model.export", request), ("model.remove", {"export": "x"}))
    assert answer["size"] > 0
    assert not (host.run_dir / "exports").exists()


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (sys.executable, r"the model of step 7 cannot be put together: \.metadata cannot be read"),
        ("/nonexistent/python", "the model of step 7 cannot be put together: .*/nonexistent/python"),
    ],
)
def test_a_model_that_cannot_be_put_together_is_an_error_with_its_reason(host: Host, python: str, message: str) -> None:
    place = save_sharded(host.checkpoints, 7, {"weight": torch.ones(3)})
    size = (place / "__0_0.distcp").stat().st_size
    (place / "__0_0.distcp").write_bytes(b"x" * size)
    with pytest.raises(RpcError, match=message):
        host.export(7, python=python)
    assert not (host.run_dir / "exports").exists()


def test_checkpoints_are_listed_with_what_each_lacks(host: Host) -> None:
    save(host.checkpoints, 1)
    place = save_sharded(host.checkpoints, 2, {"weight": torch.ones(3)})
    (place / "__0_0.distcp").unlink()
    save_sharded(host.checkpoints, 3, {"weight": torch.ones(3)})
    unfinished = host.checkpoints / ".saving-step-000000000004-shared"
    unfinished.mkdir()
    (unfinished / "__1_0.distcp").touch()
    found = list_checkpoints(str(host.checkpoints))
    assert [(one["step"], one["sharded"], one["missing"], one["parts"]) for one in found] == [
        (4, True, "", ["__1_0.distcp"]),
        (3, True, "", []),
        (2, False, "__0_0.distcp", []),
        (1, False, "", []),
    ]
    assert found[3]["bytes"] == 1000
    assert host.ask(("checkpoints.list", {})) == [{"folder": str(host.checkpoints), "checkpoints": found}]
    with pytest.raises(RpcError, match="the checkpoint of step 2 is no longer complete"):
        host.export(2)
