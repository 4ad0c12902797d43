"""Each worker's share of the data.

A share is reshuffled for every epoch without the script saying so, and all workers agree on the order because it
follows from the seed and the epoch alone. With the same order, N workers with batches of B see the same samples
in each step as one process with batches of N·B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from torchyard_roles import devices
from torchyard_roles.errors import UsageProblem
from torchyard_roles.progress import Progress


class Share(NamedTuple):
    """Part `part` of `parts` equal ones."""

    part: int = 0
    parts: int = 1


class EpochSampler(DistributedSampler):  # type: ignore[misc]  # torch is not followed by mypy, see pyproject.toml
    """DistributedSampler that goes on to the next epoch by itself; set_epoch() still does what it says."""

    def __iter__(self) -> Iterator[int]:
        order: Iterator[int] = super().__iter__()  # made in one go, from this epoch's number
        self.epoch += 1
        return order


class ShareLoader(DataLoader):  # type: ignore[misc]
    """A DataLoader that brings its batches to the rank's device and counts them."""

    def __init__(self, dataset: Dataset[Any], *, device: torch.device, progress: Progress, **options: Any) -> None:
        # Before DataLoader's own, which refuses some attributes later.
        self._device = device
        self._progress = progress
        super().__init__(dataset, **options)

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            if torch.is_grad_enabled():  # an evaluation's batches are not training's throughput
                self._progress.batch(samples(batch))
            yield devices.move(batch, self._device) if self._device.type != "cpu" else batch


def make_loader(
    dataset: Dataset[Any],
    share: Share,
    *,
    batch_size: int,
    shuffle: bool,
    seed: int | None,
    device: torch.device,
    progress: Progress,
    options: dict[str, Any],
) -> ShareLoader:
    """The loader of one share; the whole of the data where there is only one.

    `batch_size` is a worker's own. `options` go to DataLoader as they are.
    Raises UsageProblem where the data cannot be shared out.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageProblem(f"loader(batch_size={batch_size!r}): a batch holds at least one sample.")
    options = {"pin_memory": device.type == "cuda", **options}
    streams = isinstance(dataset, IterableDataset)
    if share.parts > 1:
        _check_can_be_shared(dataset, streams, options)
        options["sampler"] = EpochSampler(
            dataset, num_replicas=share.parts, rank=share.part, shuffle=shuffle, seed=seed or 0
        )
    elif not streams and not options.keys() & {"sampler", "batch_sampler"}:
        options["shuffle"] = shuffle
        if seed is not None:
            options.setdefault("generator", torch.Generator().manual_seed(seed))
    if "batch_sampler" not in options:
        options["batch_size"] = batch_size
    return ShareLoader(dataset, device=device, progress=progress, **options)


def samples(batch: Any) -> int:
    """How many samples a batch holds: the length of the first tensor in it, 0 where there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((count for count in map(samples, batch) if count), 0)
    return 0


def _check_can_be_shared(dataset: Dataset[Any], streams: bool, options: dict[str, Any]) -> None:
    if streams or not hasattr(dataset, "__len__"):
        raise UsageProblem(
            f"loader() cannot share out {type(dataset).__name__}, which has no length.",
            "Use a DataLoader of your own on a dataset that yields this worker's part, by cluster.rank.",
        )
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise UsageProblem(
                f"loader({name}=…): it would give every worker the same samples; the shares are made by loader().",
                f"Leave {name} out, or use it in a DataLoader of your own with cluster.rank.",
            )
