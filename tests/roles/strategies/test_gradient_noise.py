"""Tests of the estimated gradient noise scale, by comparison with its known value."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.roles.strategies.reduction_server.reduction_runs import Runs, runs
from torchyard_roles.strategies.gradient_noise import EVERY, FEWEST, GradientNoise

__all__ = ["runs"]

pytestmark = pytest.mark.train

WIDTH, MEAN, SPREAD = 64, 0.5, 2.0
TRUE_SCALE = SPREAD**2 / MEAN**2
"""The variance of a sample's gradient over its squared length; both are sums over the same number of elements."""


def estimate(noise: GradientNoise, workers: int, batch: int, passes: int, factor: float = 1.0) -> None:
    """Passes the gradients of `passes` steps of all workers to `noise`, in two buckets each."""
    torch.manual_seed(0)
    samples = 0
    for _ in range(passes):
        noise.begin()
        each = MEAN + SPREAD * torch.randn(workers, batch, WIDTH).mean(dim=1)
        for part in (slice(0, 10), slice(10, WIDTH)):
            noise.add_own(each[0, part] * factor, factor)
        for part in (slice(0, 10), slice(10, WIDTH)):
            noise.add_mean(each.mean(dim=0)[part])
        noise.end()
        samples += batch
        noise.step(samples, 1)


def test_the_scale_is_the_variance_over_the_squared_mean() -> None:
    noise = GradientNoise(4)
    estimate(noise, 4, 8, EVERY * 200, factor=1 / 4)
    assert noise.scale == pytest.approx(TRUE_SCALE, rel=0.25)


def test_no_scale_is_reported_before_there_are_enough_estimates() -> None:
    noise = GradientNoise(4)
    estimate(noise, 4, 8, EVERY * (FEWEST - 1))
    assert noise.scale is None
    alone = GradientNoise(1)
    estimate(alone, 1, 8, EVERY * 10)
    assert alone.scale is None


def test_passes_that_do_not_make_a_step_alone_are_left_out() -> None:
    noise = GradientNoise(2)
    for number in range(EVERY * 20):
        noise.begin()
        noise.add_own(torch.ones(3), 1.0)
        noise.add_mean(torch.ones(3))
        if number % 2:
            noise.drop()
        noise.end()
        noise.step(number, 2)
    assert noise.scale is None
    estimate(noise, 2, 4, EVERY * 100)
    assert noise.scale is not None


def test_gradients_that_are_not_finite_are_left_out() -> None:
    noise = GradientNoise(2)
    estimate(noise, 2, 4, EVERY * 50)
    before = noise.scale
    for number in range(EVERY):
        noise.begin()
        noise.add_own(torch.tensor([math.nan]), 1.0)
        noise.add_mean(torch.tensor([math.inf]))
        noise.end()
        noise.step(1_000_000 + number, 1)
    assert noise.scale == before


@pytest.mark.parametrize("reducers", [0, 3])
def test_runs_estimate_the_noise_scale_of_their_gradients(runs: Runs, reducers: int) -> None:
    for output in runs.topology(3, reducers).outputs("noisy.py"):
        assert json.loads(output.splitlines()[-1]) == pytest.approx(TRUE_SCALE, rel=0.6)
