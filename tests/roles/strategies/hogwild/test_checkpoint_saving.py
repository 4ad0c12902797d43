"""Tests that Hogwild's groups save no checkpoint with NaN or infinite parameters, with real groups in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from tests.roles.strategies.hogwild.worker_groups import KEY, at_once, peers_of
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.checkpoints.saver import CheckpointSaver
from torchyard_roles.environment import Environment, Options, Peers, TrainerAddress
from torchyard_roles.errors import NotFinite
from torchyard_roles.strategies import all_reduce
from torchyard_roles.strategies.finite_gradients import FiniteGradients, all_finite
from torchyard_roles.strategies.hogwild import strategy as hogwild
from torchyard_roles.strategies.hogwild.strategy import Hogwild

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
RESUMED = 40
"""The step from which all groups resume."""


class Ready:
    def synchronize(self) -> None:
        pass


class LateFlags(FiniteGradients):
    """Reads the flag of a step only in the next step or in check(), as it is read on a GPU."""

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.check()
        self.step += 1
        self._late = self.step, all_finite([each.grad for each in optimizer.param_groups[0]["params"]]), Ready()


class Member(NamedTuple):
    """The first rank of a group."""

    strategy: Hogwild
    saving: CheckpointSaver
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, number: int, factor: float) -> None:
        self.optimizer.zero_grad()
        (self.model(torch.ones(4, 3)).sum() * factor).backward()
        self.optimizer.step()
        self.strategy.at_boundary(number)


@contextmanager
def members(folder: Path, *sizes: int) -> Iterator[list[Member]]:
    """Returns the first rank of each group; the groups have the given sizes.

    For a larger group, the first rank forms a process group without the other ranks, which would do the same as the
    first.
    """
    places = [TrainerAddress(*peer, 1, group) for group, peer in enumerate(peers_of(len(sizes)))]
    found = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for group, size in enumerate(sizes):
            environment = Environment(
                replica=f"worker-{group}",
                rank=group,
                world_size=sum(sizes),
                strategy="hogwild",
                options=Options(kind="hogwild", sync_every=1000),
                group=group,
                groups=len(sizes),
                group_size=size,
                peers=Peers(trainers=tuple(places)),
                key=KEY,
            )
            strategy, model = Hogwild(environment), torch.nn.Linear(3, 2)
            optimizer = torch.optim.Adam(model.parameters())
            strategy.start(CPU)
            shared, _ = strategy.distribute(model, optimizer, CPU)
            strategy.restore(folder, RESUMED)
            saving = CheckpointSaver(folder, environment, strategy, CPU, None, 1)
            saving.start(model, optimizer, {}, RESUMED)
            found.append(Member(strategy, saving, shared, optimizer))
        at_once(*(lambda each=each: each.strategy.at_boundary(RESUMED) for each in found))
        yield found
    finally:
        for each in found:
            each.strategy.abandon()
        dist.destroy_process_group()


def saved(folder: Path) -> list[int]:
    """Returns the steps of the chief's checkpoints. Asserts that every group has saved its part of each checkpoint."""
    there = checkpoint_files.steps(folder)
    assert [checkpoint_files.part_steps(folder, path.name) for path in (folder / "parts").iterdir()] == [there] * 3
    return there


def test_no_group_saves_after_a_step_whose_gradients_a_gpu_has_not_shown_to_be_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (hogwild, all_reduce):
        monkeypatch.setattr(module, "FiniteGradients", LateFlags)
    with members(tmp_path, 1, 1, 2) as groups:
        for each in groups:
            each.step(41, 1.0)
            assert each.saving.save(41, last=True)
        assert saved(tmp_path) == [41]
        for each in groups:
            each.step(42, float("nan"))
            assert each.model.weight.isnan().all()
            # When the run is stopped, no checkpoint is saved either, and no error is raised yet.
            assert not each.saving.save(42, last=True)
            for last in (
                lambda each=each: each.saving.save(42, anew=True),
                lambda each=each: each.strategy.save(tmp_path, 42),
                each.strategy.finish,
            ):
                with pytest.raises(NotFinite, match="gradients of step 42 are NaN"):
                    last()
        assert saved(tmp_path) == [41]


def test_the_chief_saves_no_parameters_that_have_grown_without_bound(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with members(tmp_path, 1, 1, 1) as (chief, *_):
        chief.model.weight.data.fill_(float("inf"))
        assert not chief.saving.save(41, last=True)
        assert checkpoint_files.steps(tmp_path) == []
    assert "could not be saved" in (output := capfd.readouterr().out)
    assert "The parameters of worker group 0 are no longer finite" in output
