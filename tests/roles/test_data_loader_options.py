"""Tests of the options of loader(): those of DataLoader, an existing DataLoader, and the parts of the data in an
evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

import torchyard_roles as ty
from torchyard_roles.training_metrics import Progress

pytestmark = pytest.mark.train


def made(
    dataset: Any,
    parts: int = 1,
    part: int = 0,
    *,
    repetition: int = 0,
    evaluation: bool = False,
    seed: int | None = None,
    **options: Any,
):
    import torch

    from torchyard_roles.data_loader import DataShare, make_loader

    return make_loader(
        dataset,
        DataShare(part, parts, repetition),
        seed=seed,
        device=torch.device("cpu"),
        progress=Progress(),
        evaluating=(lambda begins: None) if evaluation else None,
        **{name: options.pop(name) for name in ("batch_size", "shuffle") if name in options},
        options=options,
    )


def numbers(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_the_defaults_are_dataloaders() -> None:
    assert numbers(made(list(range(3)))) == [[0], [1], [2]]
    # Data are padded, so both workers make the same number of steps.
    assert numbers(made(list(range(5)), 2, 1)) == [[1], [3], [0]]
    assert numbers(made(list(range(5)), 2, 1, drop_last=True)) == [[1], [3]]


def test_a_repeated_share_has_as_many_samples_in_another_random_order_and_none_to_evaluate() -> None:
    shares = [made(list(range(20)), 2, 1, repetition=number, shuffle=True, batch_size=5) for number in range(3)]
    orders = [numbers(share) for share in shares]
    assert [len(order) for order in orders] == [2, 2, 2]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert numbers(made(list(range(20)), 2, 1, repetition=1, shuffle=True, batch_size=5)) == orders[1]
    assert numbers(made(list(range(20)), 2, 1, repetition=1, evaluation=True)) == []


def test_a_dataloader_is_taken_over_as_it_is_in_one_process() -> None:
    import torch
    from torch.utils.data import DataLoader

    def loader() -> DataLoader[int]:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(
            list(range(10)), 3, shuffle=True, drop_last=True, generator=generator, collate_fn=torch.tensor
        )

    plain = loader()
    taken = made(loader())
    assert [numbers(taken) for _ in range(2)] == [numbers(plain) for _ in range(2)]
    assert (taken.batch_size, taken.drop_last) == (3, True)
    assert taken.collate_fn is torch.tensor
    assert numbers(made(loader(), seed=1)) == numbers(made(loader(), seed=1))


def test_options_of_workers_are_taken_over() -> None:
    from torch.utils.data import DataLoader

    begun: list[int] = []
    loader = DataLoader(
        list(range(10)),
        2,
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        timeout=7,
        multiprocessing_context="spawn",
        worker_init_fn=begun.append,
    )
    taken = made(loader, 2)
    assert (taken.num_workers, taken.prefetch_factor, taken.persistent_workers, taken.timeout) == (1, 3, True, 7)
    assert taken.multiprocessing_context is loader.multiprocessing_context
    taken.worker_init_fn._then(4)
    assert begun == [4]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataloader_is_shared_out(shuffle: bool) -> None:
    from torch.utils.data import DataLoader

    parts = [numbers(made(DataLoader(list(range(12)), 2, shuffle=shuffle), 3, part)) for part in range(3)]
    assert all(len(batches) == 2 for batches in parts)
    samples = [sample for batches in parts for batch in batches for sample in batch]
    assert sorted(samples) == list(range(12))
    assert (parts[0] == [[0, 3], [6, 9]]) != shuffle


def test_what_cannot_be_shared_out_is_refused() -> None:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    class Other(DataLoader):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    data = list(range(6))
    batches = BatchSampler(SequentialSampler(data), 2, drop_last=False)
    for loader, sentence in (
        (DataLoader(data, sampler=WeightedRandomSampler([1.0] * 6, 6)), r"loader\(sampler=…\)"),
        (DataLoader(data, sampler=RandomSampler(data, replacement=True)), r"loader\(sampler=…\)"),
        (DataLoader(data, sampler=RandomSampler(data, num_samples=2)), r"loader\(sampler=…\)"),
        (DataLoader(data, batch_sampler=batches), r"loader\(batch_sampler=…\)"),
        (DataLoader(data, batch_size=None), "a batch holds at least one sample"),
        (DataLoader(Stream(), batch_size=2), "cannot divide Stream, which has no length"),
        (Other(data), "cannot take over a Other, which has its own way of iterating"),
    ):
        with pytest.raises(ty.UsageProblem, match=sentence):
            made(loader, 2)
    # A single process gets all data in the script's order.
    assert numbers(made(DataLoader(data, batch_sampler=batches))) == [[0, 1], [2, 3], [4, 5]]
    assert numbers(made(DataLoader(Stream(), batch_size=2))) == [[0, 1], [2]]
    with pytest.raises(ty.UsageProblem, match="got a loader that it has returned earlier"):
        made(made(data))
    with pytest.raises(ty.UsageProblem, match=r"got a DataLoader and batch_size=… together"):
        made(DataLoader(data), batch_size=1)
    with pytest.raises(ty.UsageProblem, match=r"got a DataLoader and num_workers=… together"):
        made(DataLoader(data), num_workers=0)


@pytest.mark.parametrize("count", [0, 2, 7, 12])
def test_an_evaluation_has_each_sample_once_in_the_datasets_order(count: int) -> None:
    from torch.utils.data import DataLoader

    for dataset in (list(range(count)), DataLoader(list(range(count)), shuffle=count > 0)):
        parts = [list(chain(*numbers(made(dataset, 5, part, evaluation=True)))) for part in range(5)]
        assert list(chain(*parts)) == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_an_evaluation_leaves_nothing_out() -> None:
    with pytest.raises(ty.UsageProblem, match="drop_last=True would leave samples out"):
        made([1, 2], evaluation=True, drop_last=True)
    with pytest.raises(ty.UsageProblem, match="in the dataset's order"):
        made([1, 2], evaluation=True, shuffle=True)


def test_an_evaluation_is_no_step_of_training() -> None:
    import torch

    cluster = ty.join()
    model = torch.nn.Linear(1, 1)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    boundaries: list[int] = []
    cluster._strategy.at_boundary = boundaries.append
    test = cluster.loader(torch.ones(6, 1), batch_size=2, evaluation=True)
    for batch in test:
        model(batch)
        break  # The evaluation ends when the script leaves the loop early.
    with torch.no_grad():
        assert len(list(map(model, test))) == 3
    assert boundaries == []
    assert cluster._progress._samples == 0
    for batch in cluster.loader(torch.ones(6, 1), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
        for each in test:
            model(each)
    assert boundaries == [0, 1, 2, 3]
    assert cluster._progress._samples_stepped == 6
    cluster.leave()
