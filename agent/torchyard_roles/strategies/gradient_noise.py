"""The gradient noise scale of a data-parallel run, from the norms of one rank's gradient and of the averaged gradient.

The noise scale B = S/|G|² is the ratio of S, the total variance of per-sample gradients, to the squared norm of the
true gradient G. Global batches that are much larger than B hardly reduce the number of steps. With a batch of B,
training takes twice the minimum number of steps, and twice the minimum number of samples. A rank's gradient is computed
from its batch of b samples, and the average over N ranks from N·b samples. The norms of both give unbiased estimates of
|G|² and S (McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A.1). Both estimates are noisy,
so B is computed as the ratio of their moving averages.
"""

from __future__ import annotations

import math

import torch

EVERY = 16
"""Only every 16th backward pass is measured, so that computing the norms takes little time."""
DECAY = 0.95
"""Weight of the earlier estimates in the moving averages."""
FEWEST = 5
"""Smallest number of estimates from which a noise scale is reported."""


class GradientNoise:
    """One rank's estimate of the gradient noise scale.

    Args:
        workers: The number of ranks whose gradients are averaged.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._passes = 0
        self._measures = False
        self._own: list[torch.Tensor] = []
        self._mean: list[torch.Tensor] = []
        self._waiting: tuple[torch.Tensor, torch.Tensor] | None = None
        """The squared norms of this rank's gradients and of the averaged gradients, in this step's backward pass."""
        self._pending: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """Squared norms and batch sizes that have not been read yet, because reading waits for the GPU."""
        self._samples = 0
        self._square = self._variance = 0.0
        """Moving averages of |G|² and S."""
        self._count = 0

    def begin(self) -> None:
        """Begins a backward pass, and decides whether it is measured."""
        self._passes += 1
        self._measures = self._passes % EVERY == 0 and self.workers > 1
        self._own.clear()
        self._mean.clear()

    def drop(self) -> None:
        """Discards the measurement of this pass, for example if a bucket of the pass is exchanged twice."""
        self._measures = False

    def add_own(self, flat: torch.Tensor, factor: float) -> None:
        """Adds a bucket to the norm of this rank's gradients. `flat` contains the gradients times `factor`."""
        if self._measures:
            self._own.append(_square(flat) / factor**2)

    def add_mean(self, flat: torch.Tensor) -> None:
        """Adds a bucket to the norm of the averaged gradients."""
        if self._measures:
            self._mean.append(_square(flat))

    def end(self) -> None:
        """Ends a backward pass whose buckets were all averaged.

        The measurement is used only if the optimizer step has no other backward pass.
        """
        measures, self._measures = self._measures, False
        if not measures or len(self._own) != len(self._mean) or not self._own:
            return
        self._waiting = torch.stack(self._own).sum(), torch.stack(self._mean).sum()

    def step(self, samples: int, passes: int) -> None:
        """Ends an optimizer step. Its measurement counts only if the step had one backward pass.

        Args:
            samples: The number of samples that this rank has used since its start, or 0 if it is unknown.
            passes: The number of exchanged backward passes of this step.
        """
        batch, self._samples = samples - self._samples, samples
        waiting, self._waiting = self._waiting, None
        if waiting is not None and passes == 1 and batch > 0:
            self._pending.append((*waiting, batch))

    @property
    def scale(self) -> float | None:
        """The noise scale in samples, or None if there are too few estimates or they are too noisy."""
        pending, self._pending = self._pending, []
        for own, mean, batch in pending:
            self._add(float(own), float(mean), batch)
        if self._count < FEWEST or self._square <= 0 or self._variance <= 0:
            return None
        return self._variance / self._square

    def _add(self, own: float, mean: float, batch: int) -> None:
        if not (math.isfinite(own) and math.isfinite(mean)):
            return
        whole = self.workers * batch
        square = (whole * mean - batch * own) / (whole - batch)
        variance = (own - mean) / (1 / batch - 1 / whole)
        # The first estimates are averaged with equal weights.
        weight = max(1 - DECAY, 1 / (self._count + 1))
        self._square += weight * (square - self._square)
        self._variance += weight * (variance - self._variance)
        self._count += 1


def _square(flat: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if flat.dtype in (torch.float16, torch.bfloat16) else None
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=dtype)
    return norm.double() ** 2
