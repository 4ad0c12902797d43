"""Tests that a loader resumes within an epoch with the same batches as an uninterrupted run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchyard_roles.training_metrics import Progress

pytestmark = pytest.mark.train

SAMPLES = 22


def make(parts: int = 1, part: int = 0, seed: int | None = None, dataset: object = None, **options: object):
    import torch

    from torchyard_roles.data_loader import DataShare, make_loader

    return make_loader(
        torch.arange(SAMPLES) if dataset is None else dataset,
        DataShare(part, parts),
        batch_size=3,
        shuffle=dataset is None,
        seed=seed,
        device=torch.device("cpu"),
        progress=Progress(),
        options=options,
    )


def epochs(loader, count: int) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("batches", [0, 1, 4, 8])
@pytest.mark.parametrize("how", ["global", "seeded", "shared", "workers", "stream"])
def test_finished_epochs_yield_nothing_and_the_rest_is_what_it_would_have_been(how: str, batches: int) -> None:
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.arange(SAMPLES))

    def fresh():
        torch.manual_seed(11)
        if how == "shared":
            return make(parts=2)
        if how == "workers":
            return make(num_workers=2)
        return make(seed=4 if how == "seeded" else None, dataset=Stream() if how == "stream" else None)

    expected = epochs(fresh(), 4)
    broken = fresh()
    seen = epochs(broken, 1)
    iterator = iter(broken)
    seen.append([next(iterator).tolist() for _ in range(min(batches, len(expected[1])))])
    random = torch.get_rng_state()
    if not batches:
        # The position is saved before the loader has drawn the order of the epoch, but with the random state that
        # determines it.
        next(iterator)
    position = {**broken.position(), "batches": len(seen[1])}
    torch.manual_seed(99)  # The new process has a different random state.
    resumed = fresh()
    torch.rand(7)
    points = []

    def resume() -> None:
        points.append(True)
        torch.set_rng_state(random)

    resumed.go_on_from(position, resume)
    rest = epochs(resumed, 4)
    assert rest[0] == []
    assert seen[1] + rest[1] == expected[1]
    assert points == [True]
    assert rest[2:] == expected[2:]
    assert resumed.epochs_done == 3


def test_with_fewer_workers_than_before_the_batches_done_are_counted_over() -> None:
    before = make(parts=3, part=1)
    list(before)
    iterator = iter(before)
    next(iterator)
    next(iterator)
    now = make(parts=2, part=1)
    now.go_on_from(before.position(), lambda: None)
    first, second = epochs(now, 2)
    assert first == []
    assert len(second) == 4 - 3  # Two batches of each of 3 workers are as many as three batches of each of 2 workers.


def test_an_evaluation_neither_counts_nor_is_passed_over() -> None:
    import torch

    loader = make()
    list(loader)
    with torch.no_grad():
        list(loader)
    assert loader.position()["begun"] == 1
    resumed = make()
    resumed.go_on_from({**loader.position(), "begun": 5}, lambda: None)
    with torch.no_grad():
        assert len(list(resumed)) == 8
    assert list(resumed) == []


def test_resuming_again_before_anything_was_asked_for_loses_nothing() -> None:
    loader = make(seed=1)
    iterator = iter(loader)
    next(iterator)
    resumed = make(seed=1)
    resumed.go_on_from(loader.position(), lambda: None)
    again = make(seed=1)
    again.go_on_from(resumed.position(), lambda: None)
    whole = make(seed=1)
    assert epochs(again, 1)[0] == epochs(whole, 1)[0][1:]


def test_the_last_batch_of_an_epoch_is_partial() -> None:
    loader = make()
    partial = []
    for batch in loader:
        progress = loader._progress
        partial.append((len(batch), progress._is_partial))
        progress.step()
    assert partial == [(3, False)] * 7 + [(1, True)]
