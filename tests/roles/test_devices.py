"""Tests of which device a rank uses, and of moving batches to it. The device `meta` stands for a GPU."""

from __future__ import annotations

from collections import namedtuple

import pytest

from torchyard_roles.environment import Environment
from torchyard_roles.training_metrics import Progress

pytestmark = pytest.mark.train

Pair = namedtuple("Pair", "first second")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulates two GPUs; yields a list to which each device that becomes the current one is added."""
    import torch

    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_each_local_rank_takes_the_gpu_of_its_number(two_gpus: list[int]) -> None:
    from torchyard_roles.devices import choose

    assert str(choose(Environment(local_rank=1, local_world_size=2))) == "cuda:1"
    assert two_gpus == [1]


def test_more_ranks_than_gpus_all_take_the_cpu(two_gpus: list[int]) -> None:
    from torchyard_roles.devices import choose

    assert {str(choose(Environment(local_rank=rank, local_world_size=3))) for rank in range(3)} == {"cpu"}
    assert two_gpus == []


def test_a_batch_moves_whole_however_it_is_nested() -> None:
    import torch

    from torchyard_roles.devices import move

    tensor = torch.ones(2)
    moved = move([(tensor, 3), {"a": tensor, "b": "text"}, Pair(tensor, None)], torch.device("meta"))
    assert str(moved[0][0].device) == str(moved[1]["a"].device) == str(moved[2].first.device) == "meta"
    assert (moved[0][1], moved[1]["b"], moved[2].second) == (3, "text", None)


def test_the_loader_brings_batches_to_the_device_and_counts_what_is_trained_on() -> None:
    import torch
    from torch.utils.data import TensorDataset

    from torchyard_roles.data_loader import DataShare, make_loader

    class Counted(Progress):
        samples = 0

        def batch(self, samples: int, *, is_partial: bool = False) -> None:
            self.samples += samples

    progress = Counted()
    loader = make_loader(
        TensorDataset(torch.ones(10, 1)),
        DataShare(),
        batch_size=4,
        shuffle=False,
        seed=None,
        device=torch.device("meta"),
        progress=progress,
        options={},
    )
    assert {str(batch.device) for (batch,) in loader} == {"meta"}
    assert progress.samples == 10
    with torch.no_grad():
        assert len(list(loader)) == 3
    assert progress.samples == 10


def test_what_cannot_be_shared_out_is_refused_in_a_sentence() -> None:
    import torch
    from torch.utils.data import IterableDataset, SequentialSampler

    from torchyard_roles.data_loader import DataShare, make_loader
    from torchyard_roles.errors import UsageProblem

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    def share_out(dataset: object, **options: object) -> object:
        return make_loader(
            dataset,
            DataShare(0, 2),
            batch_size=1,
            shuffle=True,
            seed=None,
            device=torch.device("cpu"),
            progress=Progress(),
            options=options,
        )

    with pytest.raises(UsageProblem, match="cannot divide Stream, which has no length"):
        share_out(Stream())
    with pytest.raises(UsageProblem, match="every worker the same samples"):
        share_out([1, 2], sampler=SequentialSampler([1, 2]))
