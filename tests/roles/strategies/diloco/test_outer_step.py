"""Tests that the outer optimizer's step equals that of torch.optim.SGD."""

from __future__ import annotations

import pytest
import torch

from torchyard_roles.exchange.pinned_copies import PinnedCopies
from torchyard_roles.strategies.diloco.outer_step import OuterParameters, flats_of


def parameters_of(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in ((3, 4), (5,), ())]


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (0.3, 0.5)])
def test_a_step_equals_torchs_sgd_with_nesterov_from_the_first_step(lr: float, momentum: float) -> None:
    model = parameters_of(torch.float64)
    outer = OuterParameters(flats_of(model, []))
    outer.begin()
    expected = [torch.nn.Parameter(each.clone()) for each in model]
    optimizer = torch.optim.SGD(expected, lr=lr, momentum=momentum, nesterov=True)
    for round_ in range(20):
        generator = torch.Generator().manual_seed(round_)
        for parameter in expected:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        for mine, parameter in zip(model, expected, strict=True):
            mine.copy_(parameter.detach() - parameter.grad)  # With these values, the difference equals the gradient.
        differences = outer.differences()
        gradients = torch.cat([parameter.grad.flatten() for parameter in expected])
        assert torch.allclose(differences[0], gradients, rtol=0, atol=1e-14)
        outer.step([gradients.clone()], lr, momentum)
        outer.install()
        optimizer.step()
        assert torch.equal(outer.theta[0], torch.cat([each.detach().flatten() for each in expected]))
        assert all(torch.equal(mine, other.detach()) for mine, other in zip(model, expected, strict=True))
    assert outer.round == 20


def test_without_momentum_the_average_of_parameters_is_the_result_and_the_momentum_stays_zero() -> None:
    model = parameters_of(torch.float64)
    outer = OuterParameters(flats_of(model, []))
    outer.begin()
    wanted = [each + 1 for each in model]
    for mine, other in zip(model, wanted, strict=True):
        mine.copy_(other)
    outer.step(outer.differences(), 1.0, 0.0)
    outer.install()
    assert all(torch.allclose(mine, other, rtol=0, atol=1e-14) for mine, other in zip(model, wanted, strict=True))
    assert not outer.momentum[0].any()


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_outer_parameters_are_in_float32_or_the_wider_dtype_on_the_cpu(dtype: torch.dtype, wide: torch.dtype) -> None:
    outer = OuterParameters(flats_of(parameters_of(dtype), []))
    outer.begin()
    assert [(each.dtype, each.device.type) for each in (*outer.theta, *outer.momentum)] == [(wide, "cpu")] * 2


def test_buffers_are_averaged_without_the_outer_optimizer_and_counters_are_not() -> None:
    weight, mean, count = torch.zeros(2), torch.ones(2), torch.ones(1, dtype=torch.int64)
    outer = OuterParameters(flats_of([weight], [mean, count]))
    outer.begin()
    weight.sub_(1.0)
    mean.add_(1.0)
    count.add_(1)
    outer.step(outer.differences(), 0.5, 0.9)
    outer.install()
    assert weight.tolist() == pytest.approx([-0.5 * 1.9] * 2)
    assert (mean.tolist(), count.tolist()) == ([2.0, 2.0], [2])


def test_complex_parameters_and_those_in_another_memory_layout_are_averaged() -> None:
    model = [torch.randn(3, dtype=torch.complex64), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)]
    before = [each.clone() for each in model]
    outer = OuterParameters(flats_of(model, []))
    outer.begin()
    for each in model:
        each.mul_(3)
    outer.install()
    assert all(torch.equal(mine, other) for mine, other in zip(model, before, strict=True))


def test_snapshots_and_staged_values_take_the_way_of_a_gpu() -> None:
    """Values on the CPU are copied in pieces, as values on a GPU are.

    A snapshot must not contain later changes of the model.
    """
    model = [torch.randn(9, 4).to(torch.bfloat16), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)]
    outer = OuterParameters(flats_of(model, []))
    for flat in outer.flats:
        flat.copies = PinnedCopies(torch.device("cpu"), piece_bytes=64)
    outer.begin()
    for each in model:
        each.mul_(3)
    expected = outer.differences()
    differences = outer.snapshot()
    for each in model:
        each.mul_(2)
    assert all(torch.equal(one, other) for one, other in zip(differences(), expected, strict=True))

    other = OuterParameters(flats_of([each.clone() for each in model], []))
    other.load(outer.theta, outer.momentum, 0)
    outer.stage()
    for each in (outer, other):
        each.install(mixing=0.25)
    mine, theirs = (each.flats[0].gather() for each in (outer, other))
    assert torch.equal(mine, theirs)

    outer.stage()
    outer.load([torch.zeros_like(each) for each in outer.theta], outer.momentum, 1)
    outer.install()
    assert not any(each.any() for each in model), "values that were staged before are not used"


def test_the_memory_of_recycled_differences_holds_the_next_differences() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    outer = OuterParameters(flats_of([parameter], ()))
    outer.begin()
    with torch.no_grad():
        parameter.fill_(1.0)
    first = outer.differences()
    place = first[0].data_ptr()
    outer.step(first, lr=1.0, momentum=0.0)
    outer.recycle(first)
    second = outer.differences()
    assert second[0].data_ptr() == place
    assert torch.equal(second[0], outer.theta[0] - 1.0)
    assert outer.differences()[0].data_ptr() != place, "memory that is in use was handed out again"
